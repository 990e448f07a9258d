"""Confidence intervals by the bootstrap (Efron 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEW = 10
"""Values below which its interval is not shown without a word: of 2 it covers the mean half the time, of 10 in 89 %."""


TAILS = [0.025, 0.975]
"""Quantiles between which 95 % of the draws lie."""


@dataclass(frozen=True)
class Interval:
    """A figure and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def bootstrap_mean(values: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Mean of independent values and its percentile bootstrap interval, of 95 %.

    Parameters
    ----------
    values : sequence of float
        One per prompt: the interval is over the prompts that might have been drawn. Of a single one, the interval is
        that value.
    resamples, seed : int
        How often values are drawn anew, with replacement, and from which random numbers.

    Raises
    ------
    ValueError
        If there are no values.

    """
    if not values:
        raise ValueError("a mean needs at least one value")
    data = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(data), size=(resamples, len(data)))
    low, high = np.quantile(data[picks].mean(axis=1), TAILS)
    return Interval(float(data.mean()), float(low), float(high))


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of one side over mean of the other, prompt by prompt the same, with its 95 % bootstrap interval.

    Prompts are drawn anew as pairs; a draw in which the other side's mean is 0 counts as infinite.
    """
    data = np.array([ours, theirs], dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, data.shape[1], size=(10_000, data.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(np.divide(*data[:, picks].mean(-1)), nan=np.inf)
        ratio = float(np.divide(*data.mean(-1)))
    low, high = np.quantile(ratios, TAILS)
    return Interval(ratio, float(low), float(high))
