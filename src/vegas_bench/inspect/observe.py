"""One prompt completed under observation: its tokens, and what every iteration selected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vegas_bench.inspect.packing import members
from vegas_bench.inspect.pieces import token_texts
from vegas_bench.inspect.recorder import SelectionTrace
from vegas_bench.inspect.trace import IterationTrace, TraceSummary
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestOutput, Update
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.policies import policy_class

_MOST_CHOSEN = 20  # positions that are listed, those read most; chosen by hand


class InspectionError(ValueError):
    """There is nothing to look at; the message says why and what to do."""


@dataclass(frozen=True)
class Look:
    """One iteration: what its draft could read and did; shapes ``[layers, heads]`` of float32 unless said otherwise."""

    number: int
    prefix_len: int
    drafted: int
    accepted: int
    positions: Tensor
    """Int32, shape ``[layers, heads, k]``, filled up with negative numbers."""
    kept: Tensor
    """Share that the iteration before had selected too; NaN for the first."""
    of_first: Tensor
    """Share that the first iteration had selected too."""
    recall: Tensor
    """Share of the draft steps' own top sets that was selected, mean over steps; NaN without drafts."""
    mass: Tensor
    """Share of the draft steps' softmax weight on the prefix that the selection holds."""
    oracle_mass: Tensor
    """The same of the top sets: the most that so many entries can hold."""


@dataclass(frozen=True)
class Inspection:
    """A prompt, its completion, and every iteration's look at them."""

    model: str
    config: dict[str, Any]
    texts: list[str]
    """Of prompt and output, token by token."""
    prompt_tokens: int
    layers: tuple[int, ...]
    looks: list[Look]
    summary: TraceSummary
    output: RequestOutput

    @property
    def length(self) -> int:
        """Positions that could ever be selected."""
        return max(look.prefix_len for look in self.looks)

    def to_dict(self) -> dict[str, Any]:
        """Figures without the selections themselves, fit for JSON; None where nothing could be measured."""
        stats = self.output.stats
        figures = {
            "model": self.model,
            "config": self.config,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": len(self.output.outputs[0].token_ids),
            "accepted_per_iteration": stats.accepted_per_draft,
            "draft_kv_share": stats.draft_kv_share,
            **self.summary.to_dict(),
            "kept_of_first": float(torch.stack([look.of_first for look in self.looks]).nanmean()),
            "most_chosen": self.most_chosen(),
        }
        without_nan: dict[str, Any] = json.loads(json.dumps(figures), parse_constant=lambda nan: None)
        return without_nan

    def most_chosen(self) -> list[dict[str, Any]]:
        """Positions that were selected most often, as a share of all sets that could have had them."""
        count, could = torch.zeros(self.length), torch.zeros(self.length)
        for look in self.looks:
            sets = members(look.positions, self.length).flatten(0, 1)
            sets = sets[sets.any(-1)]
            count += sets.sum(0)
            could[: look.prefix_len] += sets.shape[0]
        # Of positions that few could choose, a high share says little.
        share = torch.where(2 * could >= could.max(), count / could.clamp(min=1), 0)
        best = share.topk(min(_MOST_CHOSEN, self.length)).indices.tolist()
        return [{"position": p, "token": self.texts[p], "share": round(float(share[p]), 4)} for p in best]


def inspect(
    llm: LLM, prompt: Prompt, params: SamplingParams, watch: Callable[[Update], None] = lambda update: None
) -> Inspection:
    """Complete a prompt and note what each iteration selected.

    Parameters
    ----------
    llm : LLM
        Model and policy, with ``attention="torch"``.
    prompt : str or TokensPrompt
        What to complete.
    params : SamplingParams
        How; the output takes as many iterations as it takes.
    watch : callable, optional
        Told of every update.

    Raises
    ------
    InspectionError
        If nothing was selected: the policy leaves nothing out, the model has no layer with full attention, or the
        output ended before the first draft.

    """
    if not policy_class(llm.config.policy).selects:
        raise InspectionError(
            f"policy {llm.config.policy} selects nothing, it reads everything; inspect another one, such as vegas"
        )
    trace = SelectionTrace()
    output: RequestOutput | None = None
    for update in llm.stream([prompt], params, trace=trace):
        output = update.output
        watch(update)
    assert output is not None
    if output.error:
        raise InspectionError(f"the model broke: {output.error}")
    seen = [each for each in trace.iterations if each.positions is not None]
    if not seen:
        raise InspectionError(
            "nothing was selected: the output ended before the first draft, or the model has no layer with full "
            "attention; ask for more --max-tokens or use another model"
        )
    tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    return Inspection(
        model=Path(llm.model.name).name,
        config=llm.config.to_dict(),
        texts=token_texts(llm.model.tokenizer, tokens),
        prompt_tokens=len(output.prompt_token_ids),
        layers=seen[0].layers,
        looks=_looks(seen),
        summary=trace.summary(),
        output=output,
    )


def _looks(seen: Sequence[IterationTrace]) -> list[Look]:
    first: Tensor | None = None
    looks = []
    for each in seen:
        assert each.positions is not None
        # A policy that selects at every step is seen at its first.
        positions = each.positions[0]
        sets = members(positions, each.prefix_len)
        first = sets if first is None else first
        common = (sets[..., : first.shape[-1]] & first).sum(-1)
        unknown = torch.full(positions.shape[:2], math.nan)
        looks.append(
            Look(
                number=each.iteration,
                prefix_len=each.prefix_len,
                drafted=each.drafted,
                accepted=each.accepted,
                positions=positions,
                kept=unknown if each.kept is None else each.kept,
                of_first=common / sets.sum(-1),
                recall=each.recall.mean(0),
                mass=each.mass.mean(0),
                oracle_mass=each.oracle_mass.mean(0),
            )
        )
    return looks
