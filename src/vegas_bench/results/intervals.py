"""Confidence intervals by the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def bootstrap_mean(values: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Mean of independent values and its percentile bootstrap interval (Efron 1979).

    Parameters
    ----------
    values : sequence of float
        One per prompt: the interval is over the prompts that might have been drawn. Of a single one, the interval is
        that value.
    level : float
        Share of intervals, over repeated draws of prompts, that cover the mean.
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
    low, high = np.quantile(data[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(data.mean()), float(low), float(high))
