"""Sides of a comparison in vLLM: stock, a policy, or drafts of vLLM's own; each an engine in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vegas_bench.measure.job_process import JobProcess
from vegas_bench.measure.variants import Variant, read_options, split_label, variants
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.environment import pip_install
from vegas_spec.policies import policy_class
from vegas_spec.vllm.start.options import FALL_BACK, split_options

BESIDE = {FALL_BACK: False, "rejection_sample_method": "standard"}
"""What a policy in vLLM may set beside the method's options. Unless told, drafting is never suspended: what it costs,
and gains, is what is measured."""

LOOKUPS: dict[str, tuple[dict[str, Any], dict[str, type]]] = {
    "ngram": (
        {"prompt_lookup_max": 4, "prompt_lookup_min": 2},
        {"num_speculative_tokens": int, "prompt_lookup_max": int, "prompt_lookup_min": int},
    ),
    "suffix": (
        {},
        {
            "num_speculative_tokens": int,
            "suffix_decoding_max_tree_depth": int,
            "suffix_decoding_max_cached_requests": int,
            "suffix_decoding_max_spec_factor": float,
            "suffix_decoding_min_token_prob": float,
        },
    ),
}
"""Drafts of vLLM's own that need no model, looked up in the text: their options unless told otherwise, and all there
are. Suffix decoding drafts as many tokens as it sees fit."""


@dataclass(frozen=True)
class Lookup:
    """A side that drafts by one of `LOOKUPS`; what vLLM is told."""

    label: str
    told: Mapping[str, Any] = field(hash=False)

    @property
    def key(self) -> str:
        """Identifies it among the sides of a run."""
        gamma = self.told.get("num_speculative_tokens")
        return self.label if gamma is None else f"{self.label} gamma={gamma}"


Side = Variant | Lookup


def vllm_sides(policies: Sequence[str], budgets: Sequence[float], gammas: Sequence[int], **options: Any) -> list[Side]:
    """List the sides of a run, each once; parameters are those of `variants`, names also those of `LOOKUPS`."""
    found: dict[str, Side] = {}
    for text in policies:
        name, given = split_label(text)
        sides: Sequence[Side]
        if name in LOOKUPS:
            usual, kinds = LOOKUPS[name]
            told = {"method": name, **usual, **read_options(given, kinds)}
            drafts = [{"num_speculative_tokens": gamma} for gamma in gammas] if name == "ngram" else [{}]
            sides = [Lookup(text, {**each, **told}) for each in drafts]
        else:
            sides = variants([text], budgets, gammas, beside=BESIDE, **options)
        for side in sides:
            found.setdefault(side.key, side)
    return list(found.values())


def speculative_config(side: Side, rates: Sequence[float] = ()) -> dict[str, Any] | None:
    """Say a side in vLLM's terms; None, stock vLLM, for plain decoding.

    Parameters
    ----------
    side : Variant or Lookup
        What drafts, with the options of `BESIDE`.
    rates : sequence of float
        Acceptance to impose, by vLLM's synthetic rejection: chance that the first, the first two, ... drafts are all
        accepted. Empty for none.

    Raises
    ------
    ConfigError
        If the plugin does not support it, or there are fewer rates than drafts.

    """
    if isinstance(side, Lookup):
        return dict(side.told)
    if not policy_class(side.config.policy).speculates:
        return None
    told = {"method": "vegas", **BESIDE, **side.config.to_dict(), **side.beside}
    if rates:
        gamma = side.config.num_speculative_tokens
        if gamma > len(rates):
            raise ConfigError(
                f"imposed acceptance needs a rate for each draft; got {len(rates)}, and {side.label} drafts {gamma}"
            )
        told |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [*rates[:gamma]]}
    split_options(told)
    return told


def variant_of(config: VegasConfig) -> Variant:
    """Give the side that drafts with a config."""
    return Variant(config.policy, config, BESIDE)


def check_vllm() -> None:
    """Raise a `ConfigError` unless vLLM is installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(f"engine vllm needs vLLM, which is not installed; run: {pip_install('vllm')}")


def side_process(
    name: str, engine: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], log: Path | None
) -> JobProcess:
    """Start an engine for a side.

    It answers ``{"started": ...}``, waits for `JobProcess.begin`, and then answers every task with
    ``{"key": ..., "measured": ...}``.

    Parameters
    ----------
    name : str
        Of the side, for messages.
    engine : mapping
        Arguments of `vllm.LLM`.
    tasks : sequence of mapping
        What to measure, in this order: a ``key``, a method of `vllm_engine.Engine` to ``measure``, its arguments.
    log : Path or None
        Takes what vLLM logs.

    """
    program = [sys.executable, "-m", "vegas_bench.measure.vllm_engine"]
    return JobProcess(f"vLLM ({name})", program, {"engine": dict(engine), "tasks": list(tasks)}, log)
