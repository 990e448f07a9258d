"""An inspection as a page: a heat map over the text, drift, and recall."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from vegas_bench.inspect.observe import Inspection, Look
from vegas_bench.inspect.packing import pack_sets, pack_shares
from vegas_bench.report.html import Headline, template
from vegas_bench.results.wording import tokens_text
from vegas_spec import __version__

MOST_BYTES = 11_000_000
"""Of packed sets on a page; what is beyond is thinned out, so that a browser keeps up.
Chosen by hand."""


def inspection_page(inspection: Inspection, most_bytes: int = MOST_BYTES) -> str:
    """Write the page; if all sets would take more than `most_bytes`, every second, fourth, ... iteration is shown."""
    looks, every = inspection.looks, 1
    sets, sizes = pack_sets([look.positions for look in looks], inspection.length)
    while sizes[-1] > most_bytes and len(looks) > 1:
        every *= 2
        looks = inspection.looks[::every]
        sets, sizes = pack_sets([look.positions for look in looks], inspection.length)
    data = {
        "tokens": inspection.texts[: inspection.length],
        "promptLength": inspection.prompt_tokens,
        "layers": list(inspection.layers),
        "heads": inspection.looks[0].positions.shape[1],
        "looks": [
            {"number": look.number, "prefix": look.prefix_len, "drafted": look.drafted, "accepted": look.accepted}
            for look in looks
        ],
        "mostChosen": inspection.most_chosen(),
        "shares": {
            "kept": _packed(looks, lambda look: look.kept),
            "ofFirst": _packed(looks, lambda look: look.of_first),
            "recall": _packed(looks, lambda look: look.recall),
            "mass": _packed(looks, lambda look: look.mass),
            "oracleMass": _packed(looks, lambda look: look.oracle_mass),
        },
    }
    return template("inspect.html.j2").render(
        title="What verification chose",
        version=__version__,
        subtitle=_subtitle(inspection),
        headlines=_headlines(inspection),
        every=every,
        num_looks=len(looks),
        # Inside a script element only an end tag could be mistaken for markup.
        data=Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")),
        sets=Markup(sets),
    )


def _packed(looks: list[Look], share: Callable[[Look], Tensor]) -> str:
    return pack_shares(torch.stack([share(look) for look in looks]))


def _subtitle(inspection: Inspection) -> str:
    config = inspection.config
    generated = len(inspection.output.outputs[0].token_ids)
    budget = f"budget {100 * config['kv_budget']:.3g}\u00a0%"
    return (
        f"{inspection.model} · policy {config['policy']} · prompt of {inspection.prompt_tokens:,} tokens, "
        f"{generated:,} generated · {config['num_speculative_tokens']} drafts per iteration, {budget}"
    )


def _headlines(inspection: Inspection) -> list[Headline]:
    figures: dict[str, Any] = inspection.to_dict()
    gamma = inspection.config["num_speculative_tokens"]
    entries = [
        (f"{figures['accepted_per_iteration']:.2f} of {gamma}", "drafts accepted per iteration", ""),
        (_percent(figures["draft_kv_share"]), "of the cache read by draft steps", "recent tokens included"),
        (_percent(figures["recall"]), "recall against the oracle", "of the draft steps' own best entries"),
        (
            _percent(figures["mass"]),
            "of the attention weight held",
            f"the best {tokens_text(_selected(inspection))} entries hold {_percent(figures['oracle_mass'])}",
        ),
        (_percent(figures["kept"]), "kept from iteration to iteration", ""),
        (_percent(figures["kept_of_first"]), "shared with the first selection", ""),
    ]
    return [Headline(*entry) for entry in entries if entry[0]]


def _selected(inspection: Inspection) -> int:
    return int((inspection.looks[-1].positions >= 0).sum(-1).max())


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}\u00a0%"
