"""Means that follow what they measure."""

from __future__ import annotations

import math

EXPECTED_RATE = 0.8
"""Chance that a draft is accepted, given the one before, that is expected before any was seen."""

SLOW, FAST = 1000.0, 24.0
"""Drafts judged that a slow and a fast mean remember."""

TURNED = 5.0
"""Log likelihood by which the latest drafts must speak for the fast mean against the slow one."""

AFTER_TURN = 6.0
"""Weight of the fast mean when it takes the slow one's place: what follows the turn soon outweighs it."""

FORGET = 8000
"""Drafts judged of which half are forgotten."""

_PRIOR_WEIGHT = 4.0
_INERTIA = 0.3


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

    def add(self, total: float, count: float = 1.0) -> None:
        """Add `count` observations that sum up to `total`."""
        keep = max(0.0, 1 - count / self._memory)
        self._sum = keep * self._sum + total
        self.weight = keep * self.weight + count

    def add_clipped(self, value: float) -> None:
        """Add one observation; one far above the mean is a hiccup of the machine and counts as less."""
        self.add(min(value, 3 * self.mean) if self.weight >= 3 else value)

    def scale(self, by: float) -> None:
        """Multiply the mean."""
        self._sum *= by

    def become(self, other: DecayedMean, weight: float) -> None:
        """Take another's mean, with this weight."""
        self._sum, self.weight = other.mean * weight, weight


class Counts:
    """Drafts accepted, of those judged."""

    def __init__(self) -> None:
        self.hits = self.tries = 0.0

    def add(self, hits: float, tries: float) -> None:
        """Add more of them; of very many, half are forgotten."""
        self.hits += hits
        self.tries += tries
        if self.tries > FORGET:
            self.hits, self.tries = self.hits / 2, self.tries / 2

    @property
    def rate(self) -> float:
        """Accepted over judged, with a little of a prior."""
        return min(max((self.hits + 1) / (self.tries + 1.25), 0.02), 0.995)

    @property
    def variance(self) -> float:
        """Of the rate, relative to its square."""
        return (1 - self.rate) / self.rate / (self.tries + 1)


class AcceptanceRate:
    """Chance that a draft is accepted, given that all before it were.

    A slow mean, dropped for a fast one when the two differ by more than chance explains: a text that turns from
    quotation to reasoning is noticed within a few iterations, and steady text is not mistaken for one that turns.
    """

    def __init__(self, expected: float = EXPECTED_RATE) -> None:
        self.begin_anew(expected)

    @property
    def value(self) -> float:
        """The present estimate."""
        return self._slow.mean

    def scale(self, by: float) -> None:
        """Expect so many times as much."""
        self._slow.scale(by)
        self._fast.scale(by)

    def begin_anew(self, expected: float) -> None:
        """Forget all, and expect this."""
        self._slow = DecayedMean(SLOW, expected, _PRIOR_WEIGHT)
        self._fast = DecayedMean(FAST, expected, _PRIOR_WEIGHT)

    def observe(self, drafted: int, accepted: int) -> None:
        """Take note of a verification: the drafts up to the first rejected one were judged."""
        judged = min(drafted, accepted + 1)
        if judged <= 0:
            return
        self._slow.add(accepted, judged)
        self._fast.add(accepted, judged)
        if self._fast.weight * _divergence(self._fast.mean, self._slow.mean) > TURNED:
            self._slow.become(self._fast, AFTER_TURN)


def _divergence(one: float, other: float) -> float:
    """Kullback-Leibler divergence of two chances."""
    p, q = (min(max(chance, 0.01), 0.99) for chance in (one, other))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


class DecayedLine:
    """A straight line through the latest points (least squares), never falling.

    As long as the points lie at one place, which says nothing of a slope, it keeps the slope that it had.
    """

    def __init__(self, memory: float = 100.0) -> None:
        self._keep = 1 - 1 / memory
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point; one far above the line counts as less."""
        if self._n >= 3:
            y = min(y, 3 * self.at(x))
        keep = self._keep
        self._n = keep * self._n + 1
        self._x = keep * self._x + x
        self._y = keep * self._y + y
        self._xx = keep * self._xx + x * x
        self._xy = keep * self._xy + x * y
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance, covariance = self._xx / self._n - mean_x**2, self._xy / self._n - mean_x * mean_y
        self._slope = max(0.0, (covariance + _INERTIA * self._slope) / (variance + _INERTIA))

    def at(self, x: float) -> float:
        """Value of the line, of which there must be a point."""
        mean_y = self._y / self._n
        return max(mean_y + self._slope * (x - self._x / self._n), 0.1 * mean_y)
