"""The cost model: what an iteration costs, what it commits, and so how fast decoding is; to predict and to judge.

    seconds per token = (verify + gamma * draft + select) / (accepted + 1)

against ``plain`` seconds per token without speculation. ``select`` is what scores and top-k add to stock verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Costs:
    """Time of the parts of an iteration, in any one unit.

    Attributes
    ----------
    plain : float
        A step of plain decoding.
    verify, select : float
        Verification without scores; what scores and selection add.
    draft : float
        One draft step.

    """

    plain: float
    verify: float
    draft: float
    select: float = 0.0

    def per_token(self, gamma: int, accepted: float) -> float:
        """Time per committed token when, of `gamma` drafts, `accepted` are accepted per iteration."""
        return (self.verify + gamma * self.draft + self.select) / (accepted + 1)

    def speedup(self, gamma: int, accepted: float) -> float:
        """Throughput over that of plain decoding."""
        return self.plain / self.per_token(gamma, accepted)


def memory_bound(weight_bytes: float, kv_bytes: float, share: float) -> Costs:
    """Floors of a memory-bound decoder, in bytes read: every step reads the weights and what it attends to.

    Parameters
    ----------
    weight_bytes : float
        Read once per step, whatever the batch.
    kv_bytes : float
        Keys and values of all contexts of the batch.
    share : float
        Of them that a draft step reads.

    """
    whole = weight_bytes + kv_bytes
    return Costs(plain=whole, verify=whole, draft=weight_bytes + share * kv_bytes)


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
