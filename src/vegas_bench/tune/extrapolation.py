"""From settings that were measured to others: acceptance by gamma, a draft step's time by the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def expected_accepted(by_position: Sequence[float], gamma: int) -> float:
    """Accepted drafts per iteration to expect with `gamma` drafts.

    Parameters
    ----------
    by_position : sequence of float
        Measured chance that the drafts at distance 1 to ``j`` are all accepted, for each ``j``. Further distances go on
        as the last one did: its chance given the one before.
    gamma : int
        Drafts per iteration.

    """
    chances = list(by_position[:gamma])
    if not chances:
        return 0.0
    before = chances[-2] if len(chances) > 1 else 1.0
    rate = min(1.0, chances[-1] / before) if before > 0 else 0.0
    while len(chances) < gamma:
        chances.append(chances[-1] * rate)
    return sum(chances)


class DraftLine:
    """Time of a draft step by the budget: a fixed part, and a part that grows with it; least squares.

    Parameters
    ----------
    points : sequence of (float, float)
        Budgets and measured times. Of a single budget, the line is flat.

    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        budgets, times = (np.array(each, dtype=np.float64) for each in zip(*points, strict=True))
        slope = float(np.polyfit(budgets, times, 1)[0]) if len(set(budgets)) > 1 else 0.0
        self.slope = max(0.0, slope)  # reading more is not faster: a negative one is noise
        self.fixed = float(times.mean() - self.slope * budgets.mean())

    def at(self, budget: float) -> float:
        """Time of a draft step with this budget."""
        return self.fixed + self.slope * budget
