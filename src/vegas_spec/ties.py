"""How far apart two logits may be for rounding alone to decide between their tokens."""

from __future__ import annotations

TIE_GAPS = {"float32": 1e-3, "float64": 1e-6}
"""Largest logit gap of a numerical tie, by dtype. Chosen by hand, to be far above what rounding adds up to and far
below what a wrong position or mask does."""

HALF_PRECISION_TIE_GAP = 0.25
"""The same in bfloat16 and float16, where a batch of seven rows and one of one row round differently: two steps of
bfloat16 between 16 and 32, which are large logits. Chosen by hand."""


def tie_gap(dtype: object) -> float:
    """Largest logit gap of a numerical tie in this dtype: torch's, or its name."""
    return TIE_GAPS.get(str(dtype).removeprefix("torch."), HALF_PRECISION_TIE_GAP)
