"""Trials: a few iterations with something else than what seems best, to learn what comes of it.

What is not tried is not known. A trial begins once what it is expected to lose is a small share of the time since the
one before, and the more seldom the longer nothing came of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vegas_spec.pacing.rates import TURNED, Counts, divergence
from vegas_spec.pacing.times import Choice

TRIAL_LENGTH = 4
"""Iterations of a trial that is to time something, from when it shows."""

TRIAL_COST, PROBE_COST = 0.007, 0.06
"""Share of the time that trials may lose: while drafting, in general; while decoding plainly, times what drafting could
gain, and while drafting to time a number of drafts for the first time."""

LONGER, LONGEST = 1.15, 8.0
"""How many times as long it is to the next trial after each that changed nothing, and at most."""

HINT, PROBE_LENGTH = 1.0, 12
"""Log likelihood for more being accepted than was known, from which a trial goes on to make sure; most iterations."""


@dataclass
class Trial:
    """Iterations with another choice.

    Attributes
    ----------
    choice : Choice
        What is tried.
    least : int
        Iterations that it lasts.
    known : float or None
        In a trial of drafts while decoding plainly, the mean acceptance rate that was known before. It lasts until
        something was judged, and goes on as long as that hints at a higher one.
    seen : Counts
        What was judged in it.
    length : int
        Iterations so far.

    """

    choice: Choice
    least: int
    known: float | None
    seen: Counts = field(default_factory=Counts)
    length: int = 0

    @property
    def evidence(self) -> float:
        """Log likelihood by which what is accepted speaks for a higher rate than was known."""
        if self.known is None or not self.seen.judged:
            return 0.0
        seen = self.seen.hits / self.seen.judged
        return float(self.seen.judged * divergence(seen, self.known)) if seen > self.known else 0.0

    @property
    def turned(self) -> bool:
        """Whether what was known holds no more."""
        return self.evidence > TURNED

    @property
    def goes_on(self) -> bool:
        """Whether it is to last on."""
        if self.length < self.least or self.known is None:
            return self.length < self.least
        promising = self.seen.hits == self.seen.judged or self.evidence > HINT
        return not self.seen.judged or (promising and not self.turned and self.length < PROBE_LENGTH)


class TrialClock:
    """Says when the next trial may begin.

    Parameters
    ----------
    interval : float
        Fewest iterations from one to the next.

    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._waited, self._look_at, self._patience = 0, interval, 1.0

    @property
    def ready(self) -> bool:
        """Whether `due` should be asked."""
        return self._waited >= self._look_at

    def wait(self) -> None:
        """Let an iteration pass."""
        self._waited += 1

    def due(self, loss: float, share: float) -> bool:
        """Whether a trial may begin that loses so many iterations' time, of which it may lose this share."""
        needed = self._patience * max(self._interval, loss / share if share > 0 else math.inf)
        self._look_at = min(needed, self._waited + self._interval)
        return self._waited >= needed

    def over(self) -> None:
        """Take note that a trial has ended."""
        self._waited, self._look_at = 0, self._interval
        self._patience = min(LONGER * self._patience, LONGEST)

    def changed(self) -> None:
        """Take note that something else is chosen now: what was learnt may hold no more."""
        self._patience = 1.0
