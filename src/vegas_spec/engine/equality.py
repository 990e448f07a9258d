"""Does drafting change what a model says? Plain and speculative greedy outputs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vegas_spec.engine.llm import LLM
from vegas_spec.engine.outputs import RequestOutput, Update
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.sampling_params import SamplingParams

TIE_GAP = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Largest logit gap of a numerical tie, by dtype."""

HALF_PRECISION_TIE_GAP = 0.25
"""In bfloat16 and float16 a batch of seven rows and one of one row round differently by up to about this much."""


@dataclass(frozen=True)
class Difference:
    """The first place where two outputs of one prompt part.

    Attributes
    ----------
    gap : float
        By how much the plain model, given the common text, prefers its own token: difference of the two logits.
    tie : bool
        Whether the gap is within what rounding explains.

    """

    prompt: int
    position: int
    plain_token: int | None
    plain_text: str
    vegas_token: int | None
    vegas_text: str
    gap: float
    tie: bool


@dataclass(frozen=True)
class EqualityReport:
    """What `compare` found."""

    compared: int
    """Tokens compared: the longer output of each prompt counts."""
    agreeing: int
    """Tokens before the first difference of each prompt."""
    differences: list[Difference]
    plain: list[RequestOutput]
    vegas: list[RequestOutput]

    @property
    def identical(self) -> bool:
        """Whether every token of every prompt is the same."""
        return not self.differences

    @property
    def faults(self) -> list[Difference]:
        """Differences that rounding does not explain."""
        return [difference for difference in self.differences if not difference.tie]

    def to_dict(self) -> dict[str, Any]:
        """Give the report, fit for JSON."""
        stats = [output.stats for output in self.vegas]
        iterations = sum(each.iterations for each in stats)
        return {
            "identical": self.identical,
            "compared": self.compared,
            "agreeing": self.agreeing,
            "first_difference": asdict(self.differences[0]) if self.differences else None,
            "ties": len(self.differences) - len(self.faults),
            "faults": len(self.faults),
            "acceptance_length": sum(each.committed for each in stats) / iterations if iterations else 0.0,
            "prompts": len(self.plain),
            "stats": [each.to_dict() for each in stats],
        }


def compare(
    plain: LLM,
    vegas: LLM,
    prompts: Sequence[Prompt],
    max_tokens: int,
    watch: Callable[[str, Update], None] | None = None,
) -> EqualityReport:
    """Complete prompts greedily with both engines and compare token by token.

    A difference is judged by feeding the common text to the plain model: a gap of its logits within `TIE_GAP` is a
    numerical tie.

    Parameters
    ----------
    plain, vegas : LLM
        Engines over the same model.
    prompts : sequence
        What to complete.
    max_tokens : int
        Of each output.
    watch : callable, optional
        Called with ``"plain"`` or ``"vegas"`` and every update, to show progress.

    """
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    outputs = {}
    for name, llm in (("plain", plain), ("vegas", vegas)):
        done: dict[str, RequestOutput] = {}
        for update in llm.stream(prompts, params):
            done[update.output.request_id] = update.output
            if watch is not None:
                watch(name, update)
        outputs[name] = [done[str(number)] for number in range(len(prompts))]
    return judge(plain, outputs["plain"], outputs["vegas"])


def judge(plain: LLM, expected: Sequence[RequestOutput], got: Sequence[RequestOutput]) -> EqualityReport:
    """Compare finished outputs; see `compare`."""
    differences, compared, agreeing = [], 0, 0
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        a, b = one.outputs[0].token_ids, other.outputs[0].token_ids
        compared += max(len(a), len(b))
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        agreeing += same
        if same < max(len(a), len(b)):
            differences.append(_difference(plain, number, same, one, other))
    return EqualityReport(compared, agreeing, differences, list(expected), list(got))


def _difference(plain: LLM, prompt: int, at: int, one: RequestOutput, other: RequestOutput) -> Difference:
    tokens = [
        output.outputs[0].token_ids[at] if at < len(output.outputs[0].token_ids) else None for output in (one, other)
    ]
    if None in tokens:
        # One output ends where the other goes on, after the same tokens: no rounding does that.
        gap = float("inf")
    else:
        logits = plain.next_token_logits(one.prompt_token_ids + one.outputs[0].token_ids[:at])
        gap = float(logits[tokens[0]] - logits[tokens[1]])
    allowed = TIE_GAP.get(plain.model.dtype, HALF_PRECISION_TIE_GAP)
    texts = ["" if token is None else plain.decode([token]) for token in tokens]
    return Difference(prompt, at, tokens[0], texts[0], tokens[1], texts[1], gap, abs(gap) <= allowed)
