"""What iterations were measured to take: by phase, where an engine times its phases, or by step, as a scheduler sees.

Both answer `seconds` for a choice of drafts and budget. What is not chosen is timed in trials, and is kept as a ratio
to what is chosen: a load that changes changes all of them alike, and they are never compared across loads.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vegas_spec.pacing.costs import Costs
from vegas_spec.pacing.rates import DecayedMean

TIME_MEMORY, LINE_MEMORY = 40.0, 100.0
"""Observations that a time remembers, and points that a line does."""

LINE_INERTIA = 0.3
"""Spread of points, squared, up to which the slope that a line had counts for more than theirs."""

SETTLED = 3
"""Steps of the same kind after which the next is timed: what was begun before has left the pipeline by then."""

TRIAL_INTERVAL, STEP_TRIAL_INTERVAL = 4, 64
"""Fewest iterations from one trial to the next: of budgets; of numbers of drafts, to time them."""

_GUESS, _SEEN = 0.01, 1.0
"""Weights of a time that was inferred, and of one that was."""


class Choice(NamedTuple):
    """Drafts per request, and the share of the configured budget that they are drafted over."""

    gamma: int
    budget_factor: float = 1.0


class Times(Protocol):
    """Times of iterations, in any one unit.

    Attributes
    ----------
    prior : bool
        Whether a cost model tells what nobody has timed yet. Then numbers of drafts are tried to be timed; else some
        are run first.
    lag : int
        Iterations until a choice shows in results, and in times that are its own.
    trial_interval : int
        Fewest iterations from one trial to the next.

    """

    prior: bool
    lag: int
    trial_interval: int

    def seconds(self, gamma: int, factor: float) -> float:
        """Expected time of an iteration with so many drafts over so much."""

    def modelled(self, gamma: int, factor: float) -> float:
        """The same by the cost model alone, where there is one; up to a factor."""

    def timed(self, gamma: int) -> bool:
        """Whether iterations with so many drafts were timed, or only the cost model knows them."""

    def move_to(self, choice: Choice) -> None:
        """Be told what is chosen from now on, but for trials."""


class RelativeTimes:
    """Times of what there is to choose from: the present one's own, and the others' as ratios to it.

    Where another was never timed, its ratio is that of the nearest one that was.

    Parameters
    ----------
    choices : sequence of float
        The present one first.

    """

    def __init__(self, choices: Sequence[float]) -> None:
        self.present = choices[0]
        self._mean = DecayedMean(TIME_MEMORY)
        self._ratios = {choice: DecayedMean(TIME_MEMORY, 1.0, _GUESS) for choice in choices}

    def timed(self, choice: float) -> bool:
        """Whether there are times of it."""
        return (self._mean if choice == self.present else self._ratios[choice]).weight >= _SEEN

    def take(self, choice: float, value: float) -> None:
        """Take note of a time."""
        if choice == self.present:
            self._mean.add(value)
        elif self.timed(self.present):
            self._ratios[choice].add(value / self._mean.mean)

    def of(self, choice: float) -> float:
        """Time to expect; 1 if nothing was timed."""
        return self._ratio(choice) * (self._mean.mean if self._mean.weight else 1.0)

    def move_to(self, choice: float) -> None:
        """Make another one the present one: what was seen of the two, of each other, stays."""
        if choice == self.present:
            return
        ratio, both = self._ratio(choice), self.timed(choice) and self.timed(self.present)
        if self._mean.weight:
            self._mean = DecayedMean(TIME_MEMORY, self._mean.mean * ratio, _SEEN if both else _GUESS)
        for known in self._ratios.values():
            known.scale(1 / ratio)
        self._ratios[self.present] = DecayedMean(TIME_MEMORY, 1 / ratio, _SEEN if both else _GUESS)
        self.present = choice

    def _ratio(self, choice: float) -> float:
        known = [each for each in self._ratios if each == self.present or self.timed(each)]
        near = min(known, key=lambda each: abs(each - choice))
        return 1.0 if near == self.present else self._ratios[near].mean


class Line:
    """A straight line through the latest points (least squares), never falling.

    As long as the points lie at one place, which says nothing of a slope, it keeps the slope that it had: 0 at first.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._slope = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point; one far above the line is a hiccup of the machine and counts as less."""
        if self._sums[0] >= 3:
            y = min(y, 3 * self.at(x))
        self._sums = (1 - 1 / LINE_MEMORY) * self._sums + (1, x, y, x * x, x * y)
        mean_x, mean_y, mean_xx, mean_xy = self._sums[1:] / self._sums[0]
        variance, covariance = mean_xx - mean_x**2, mean_xy - mean_x * mean_y
        self._slope = max(0.0, (covariance + LINE_INERTIA * self._slope) / (variance + LINE_INERTIA))

    def at(self, x: float) -> float:
        """Value of the line, of which there must be a point."""
        mean_x, mean_y = (self._sums[1:3] / self._sums[0]).tolist()
        return float(max(mean_y + self._slope * (x - mean_x), 0.1 * mean_y))


class PhaseTimes:
    """Times of an engine that times its phases: ``rest(gamma) + gamma * draft(factor)``.

    ``rest``, of verification, acceptance and selection, is a line in gamma; ``draft`` is of a draft step.

    Parameters
    ----------
    factors : sequence of float
        Budgets to choose from, as shares of the configured one, the present one first.

    """

    prior, lag, trial_interval = False, 0, TRIAL_INTERVAL

    def __init__(self, factors: Sequence[float]) -> None:
        self._rest, self._draft = Line(), RelativeTimes(factors)

    def take(self, choice: Choice, gamma: int, draft_seconds: float, rest_seconds: float) -> None:
        """Take note of an iteration with this budget, in which `gamma` drafts were made after all."""
        self._rest.add(gamma, rest_seconds)
        if gamma:
            self._draft.take(choice.budget_factor, draft_seconds / gamma)

    def seconds(self, gamma: int, factor: float) -> float:
        """See `Times`."""
        return self._rest.at(gamma) + gamma * self._draft.of(factor)

    modelled = seconds

    def timed(self, gamma: int) -> bool:
        """See `Times`: all of them are known from any."""
        return True

    def move_to(self, choice: Choice) -> None:
        """See `Times`."""
        self._draft.move_to(choice.budget_factor)


class StepTimes:
    """Times of whole steps, as a scheduler sees them: ``iteration(gamma) * pace(gamma)``.

    ``iteration`` is the cost model's, of the present batch; ``pace``, time over that, is measured between one decision
    and the next, where enough steps of a kind followed one another. Until then the cost model alone decides.

    Parameters
    ----------
    gammas : sequence of int
        Numbers of drafts to choose from, the present one first.

    Attributes
    ----------
    costs : Costs
        Of the present batch.

    """

    prior, lag, trial_interval = True, SETTLED, STEP_TRIAL_INTERVAL

    def __init__(self, gammas: Sequence[int]) -> None:
        self.costs = Costs(1.0, 1.0, 1.0)
        self._pace = RelativeTimes(gammas)
        self._kind: Hashable = None
        self._of_a_kind = 0
        self._gamma, self._began, self._expected = 0, 0.0, 1.0

    def begin(self, kind: Hashable, gamma: int, now: float) -> None:
        """Take note that a step begins, of a kind (None: one that should not be timed), which `gamma` drafts follow."""
        self._of_a_kind = self._of_a_kind + 1 if kind is not None and kind == self._kind else 0
        self._kind, self._gamma, self._began, self._expected = kind, gamma, now, self.costs.iteration(gamma)

    def end(self, now: float) -> None:
        """Take note that the next step is about to begin."""
        seconds = now - self._began
        if self._of_a_kind >= SETTLED and seconds > 0:
            self._pace.take(self._gamma, seconds / self._expected)

    def seconds(self, gamma: int, factor: float = 1.0) -> float:
        """See `Times`; the budget is always the configured one."""
        return self.costs.iteration(gamma) * self._pace.of(gamma)

    def modelled(self, gamma: int, factor: float = 1.0) -> float:
        """See `Times`."""
        return self.costs.iteration(gamma)

    def timed(self, gamma: int) -> bool:
        """See `Times`."""
        return self._pace.timed(gamma)

    def move_to(self, choice: Choice) -> None:
        """See `Times`."""
        self._pace.move_to(choice.gamma)
