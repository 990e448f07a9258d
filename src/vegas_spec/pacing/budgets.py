"""The budgets that drafting may have, as they compare with the present one.

Smaller budgets are tried now and then and compared with the iterations around: how much less is accepted with them
holds for texts to come, how much is accepted at all does not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from vegas_spec.pacing.running_means import Counts, DecayedMean

TRIAL_LENGTH = 4
"""Iterations of a trial, and of those before and after it that it is compared with."""

ENOUGH = 80
"""Drafts judged in trials of a budget before it may be chosen."""

DOUBT = 0.3
"""Standard deviations by which another budget must be better than it seems."""


class BudgetArm:
    """A budget, relative to the present one: how much is accepted with it, how long a draft step takes."""

    def __init__(self) -> None:
        self.tried, self.control = Counts(), Counts()
        self.time = DecayedMean(40.0, 1.0, 0.01)

    @property
    def relative_rate(self) -> float:
        """Acceptance in trials over acceptance around them."""
        return self.tried.rate / self.control.rate

    @property
    def deviation(self) -> float:
        """Standard deviation of that."""
        return self.relative_rate * math.sqrt(self.tried.variance + self.control.variance)


class Budgets:
    """Budgets by their share of the configured one, and what is known of them.

    Parameters
    ----------
    factors : sequence of float
        The shares, the largest first.

    Attributes
    ----------
    present : float
        The share that is drafted with, but for trials.
    draft : DecayedMean
        Time of a draft step with it.

    """

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = list(factors)
        self.present = self.factors[0]
        self.draft = DecayedMean(30.0)
        self._arms = {factor: BudgetArm() for factor in self.factors}
        self._before: deque[Counts] = deque(maxlen=TRIAL_LENGTH)
        self._compared_with: float | None = None
        """The budget of the latest trial, while the iterations after it are still counted."""
        self._after = 0

    def neighbours(self) -> list[float]:
        """Give the next smaller budget and the next larger one, where there are such."""
        place = self.factors.index(self.present)
        return [self.factors[at] for at in (place + 1, place - 1) if 0 <= at < len(self.factors)]

    def tried_enough(self, factor: float) -> bool:
        """Whether enough drafts were judged with it to choose it."""
        return self._arms[factor].tried.tries >= ENOUGH

    def relative_rate(self, factor: float) -> float:
        """Acceptance with a budget over that with the present one.

        Of another one it is taken for a little less than it seems: chance alone should not make the budget change.
        """
        arm = self._arms[factor]
        return 1.0 if factor == self.present else arm.relative_rate - DOUBT * arm.deviation

    def draft_time(self, factor: float) -> float:
        """Time of a draft step with a budget."""
        return self.draft.mean * (1.0 if factor == self.present else self._arms[factor].time.mean)

    def take_time(self, factor: float, seconds: float) -> None:
        """Take note of a draft step's time."""
        if factor == self.present:
            self.draft.add_clipped(seconds)
        elif self.draft.weight:
            self._arms[factor].time.add_clipped(seconds / self.draft.mean)

    def take_acceptance(self, factor: float, counts: Counts) -> None:
        """Take note of an iteration's drafts that were judged and accepted."""
        if factor != self.present:
            arm = self._arms[factor]
            arm.tried.add(counts.hits, counts.tries)
            for before in self._before:
                arm.control.add(before.hits, before.tries)
            self._before.clear()
            self._compared_with, self._after = factor, TRIAL_LENGTH
        elif self._compared_with is not None and self._after:
            self._arms[self._compared_with].control.add(counts.hits, counts.tries)
            self._after -= 1
        else:
            self._before.append(counts)

    def move_to(self, factor: float) -> float:
        """Make a budget the present one; give its acceptance over that of the one before, as it was seen."""
        old, new = self._arms[self.present], self._arms[factor]
        rate, time = new.relative_rate, new.time.mean
        self.draft.scale(time)
        for arm in self._arms.values():
            arm.time.scale(1 / time)
            if arm not in (old, new):
                arm.control.hits *= rate
        # What the two were compared by stays, with their parts exchanged.
        old.tried, old.control = new.control, new.tried
        new.tried, new.control = Counts(), Counts()
        self.present = factor
        self._before.clear()
        self._compared_with = None
        return rate
