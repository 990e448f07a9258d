"""A budget that drafting may have, as it compares with the present one."""

from __future__ import annotations

import math

from vegas_spec.running_means import Counts, DecayedMean


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
