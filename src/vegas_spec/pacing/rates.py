"""How much is accepted: means that follow what they measure, per request, and by budget.

The acceptance rate of a request is the chance that a draft is accepted given that all before it were: drafts up to the
first rejected one are judged, so ``rate = accepted / judged``, and of ``gamma`` drafts
``r + r^2 + .. + r^gamma`` are expected to be accepted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXPECTED_RATE = 0.9
"""Acceptance rate that is expected before any draft was judged: of six drafts, 4.2 accepted."""

PRIOR_WEIGHT, FIRM_PRIOR_WEIGHT = 8.0, 50.0
"""Judged drafts that what is expected of a new request counts for. The firm one is for where all is drafted or nothing:
a few unlucky drafts should not end drafting, which in simulation made a request at 130,000 tokens 21 % slower."""

SLOW, FAST = 1000.0, 24.0
"""Judged drafts that a slow and a fast mean remember."""

TURNED = 5.0
"""Log likelihood by which the latest drafts must speak for the fast mean against the slow one."""

AFTER_TURN = 6.0
"""Weight of the fast mean when it takes the slow one's place: what follows the turn soon outweighs it."""

FORGET = 8000
"""Judged drafts of which half are forgotten, where budgets are compared."""

COMPARED_WITH = 4
"""Iterations before and after a trial of a budget that it is compared with."""

ENOUGH = 80
"""Drafts judged in trials of a budget before it may be chosen."""

DEVIATIONS = 0.3
"""Standard deviations by which another budget must be better than it seems."""

Results = Mapping[Hashable, tuple[int, int]]
"""By request, how many tokens were drafted and how many of them accepted."""

_HITS, _JUDGED = 0, 1
_MEMORY = np.array([SLOW, FAST])


def divergence(one: Any, other: Any) -> Any:
    """Kullback-Leibler divergence of two chances: what each draft that had the one says against the other."""
    p, q = (np.minimum(np.maximum(chance, 0.01), 0.99) for chance in (one, other))
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


class DecayedMean:
    """A mean of the latest observations, about as many as `memory` says, begun with a prior of some weight."""

    def __init__(self, memory: float, mean: float = 0.0, weight: float = 0.0) -> None:
        self._memory = memory
        self._sum = mean * weight
        self.weight = weight

    @property
    def mean(self) -> float:
        """The present mean."""
        return self._sum / self.weight

    def add(self, value: float) -> None:
        """Add one observation; one far above the mean is a hiccup of the machine and counts as less."""
        value = min(value, 3 * self.mean) if self.weight >= 3 else value
        keep = 1 - 1 / self._memory
        self._sum = keep * self._sum + value
        self.weight = keep * self.weight + 1

    def scale(self, by: float) -> None:
        """Multiply the mean."""
        self._sum *= by


class AcceptanceRates:
    """The acceptance rate of every request, all in two arrays: a scheduler updates hundreds of them at each step.

    Each is a slow mean, dropped for a fast one when the two differ by more than chance explains: a text that turns from
    quotation to reasoning is noticed within a few iterations, and steady text is not mistaken for one that turns. A new
    request is expected to do as all did of late.

    Parameters
    ----------
    prior_weight : float
        Judged drafts that this counts for.

    """

    def __init__(self, prior_weight: float = PRIOR_WEIGHT) -> None:
        self._prior = prior_weight, PRIOR_WEIGHT
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._asked: Sequence[Hashable] | None = None
        self._asked_rows = np.empty(0, dtype=np.int64)
        # By row, of which 0 is everyone's and the others are requests': accepted and judged, in a slow and a fast mean.
        self._sums = np.zeros((1, 2, 2))
        self._begin(0, EXPECTED_RATE)

    @property
    def requests(self) -> Collection[Hashable]:
        """Those that something is known of."""
        return self._rows.keys()

    def of(self, requests: Sequence[Hashable]) -> NDArray[np.float64]:
        """Present estimates, float64, shape ``[requests]``."""
        rows = self._rows_of(requests)  # before, as new ones may need other arrays
        slow = self._sums[rows, :, 0]
        return slow[:, _HITS] / slow[:, _JUDGED]

    def observe(self, requests: Sequence[Hashable], accepted: NDArray[np.float64], judged: NDArray[np.float64]) -> None:
        """Take note of verifications: drafts accepted, and judged, of each request."""
        rows = np.zeros(len(requests) + 1, dtype=np.int64)  # everyone's last
        rows[:-1] = self._rows_of(requests)
        seen = np.empty((len(rows), 2))
        seen[:-1, _HITS], seen[:-1, _JUDGED] = accepted, judged
        seen[-1] = seen[:-1].sum(0)
        keep = np.maximum(0.0, 1 - seen[:, _JUDGED, None] / _MEMORY)
        sums = keep[:, None] * self._sums[rows] + seen[:, :, None]
        slow, fast = (sums[:, _HITS] / sums[:, _JUDGED]).T
        # Nearer to each other they never speak so clearly, and logarithms are not for every step.
        if (abs(fast - slow) > 0.1).any():
            turned = sums[:, _JUDGED, 1] * divergence(fast, slow) > TURNED
            sums[turned, _HITS, 0], sums[turned, _JUDGED, 0] = AFTER_TURN * fast[turned], AFTER_TURN
        self._sums[rows] = sums

    def begin_anew(self, requests: Sequence[Hashable], expected: float) -> None:
        """Forget what was seen of these requests and of all, and expect this."""
        for row in (0, *self._rows_of(requests).tolist()):
            self._begin(row, expected)

    def scale(self, by: float) -> None:
        """Expect so many times as much of every request."""
        self._sums[:, _HITS] *= by

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        if request in self._rows:
            self._free.append(self._rows.pop(request))
            self._asked = None

    def _rows_of(self, requests: Sequence[Hashable]) -> NDArray[np.int64]:
        if requests != self._asked:  # mostly the same are asked for, step by step
            for request in requests:
                if request not in self._rows:
                    self._rows[request] = row = self._free_row()
                    self._begin(row, float(self._sums[0, _HITS, 0] / self._sums[0, _JUDGED, 0]))
            self._asked = list(requests)
            self._asked_rows = np.array([self._rows[request] for request in requests], dtype=np.int64)
        return self._asked_rows

    def _free_row(self) -> int:
        if not self._free:
            size = len(self._sums)
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def _begin(self, row: int, expected: float) -> None:
        self._sums[row] = np.outer([expected, 1.0], self._prior)


@dataclass
class Counts:
    """Drafts accepted, of those judged."""

    hits: float = 0.0
    judged: float = 0.0

    def add(self, other: Counts) -> None:
        """Add more of them; of very many, half are forgotten."""
        self.hits += other.hits
        self.judged += other.judged
        if self.judged > FORGET:
            self.hits, self.judged = self.hits / 2, self.judged / 2

    @property
    def rate(self) -> float:
        """Accepted over judged, with a little of a prior."""
        return min(max((self.hits + 1) / (self.judged + 1.25), 0.02), 0.995)

    @property
    def variance(self) -> float:
        """Of the rate, relative to its square."""
        return (1 - self.rate) / self.rate / (self.judged + 1)


class BudgetRates:
    """Acceptance with other budgets, relative to that with the present one.

    A trial of a budget is compared with the iterations just before and after: how much less is accepted with it holds
    for texts to come, how much is accepted at all does not.

    Parameters
    ----------
    factors : sequence of float
        Budgets, as shares of the configured one, the largest first.

    Attributes
    ----------
    present : float
        The share that is drafted with, but for trials.

    """

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = list(factors)
        self.present = self.factors[0]
        self._tried = {factor: Counts() for factor in self.factors}
        self._around = {factor: Counts() for factor in self.factors}
        self._before: deque[Counts] = deque(maxlen=COMPARED_WITH)
        self._compared: float | None = None
        """The budget of the latest trial, while the iterations after it are still counted."""
        self._after = 0

    def neighbours(self) -> list[float]:
        """Give the next smaller budget and the next larger one, where there are such."""
        place = self.factors.index(self.present)
        return [self.factors[at] for at in (place + 1, place - 1) if 0 <= at < len(self.factors)]

    def tried_enough(self, factor: float) -> bool:
        """Whether enough drafts were judged with it to choose it."""
        return self._tried[factor].judged >= ENOUGH

    def relative(self, factor: float) -> float:
        """Acceptance rate with a budget over that with the present one.

        Of another one it is taken for a little less than it seems: chance alone should not make the budget change.
        """
        if factor == self.present:
            return 1.0
        tried, around = self._tried[factor], self._around[factor]
        return tried.rate / around.rate * (1 - DEVIATIONS * math.sqrt(tried.variance + around.variance))

    def observe(self, factor: float, counts: Counts) -> None:
        """Take note of an iteration's drafts with this budget."""
        if factor != self.present:
            self._tried[factor].add(counts)
            for before in self._before:
                self._around[factor].add(before)
            self._before.clear()
            self._compared, self._after = factor, COMPARED_WITH
        elif self._compared is not None and self._after:
            self._around[self._compared].add(counts)
            self._after -= 1
        else:
            self._before.append(counts)

    def move_to(self, factor: float) -> float:
        """Make a budget the present one; give its acceptance rate over that of the one before, as it was seen."""
        old, self.present = self.present, factor
        relative = self._tried[factor].rate / self._around[factor].rate
        for other in self.factors:
            if other not in (old, factor):
                self._around[other].hits *= relative
        # What the two were compared by stays, with their parts exchanged.
        self._tried[old], self._around[old] = self._around[factor], self._tried[factor]
        self._tried[factor], self._around[factor] = Counts(), Counts()
        self._before.clear()
        self._compared = None
        return relative
