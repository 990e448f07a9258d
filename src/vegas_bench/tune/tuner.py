"""The paper's three-step tuning, by measurement, with the cost model to leave out what cannot win.

1. With a fixed gamma, raise the budget until the number of accepted drafts stops growing.
2. With that budget, find the gamma of the highest decoding speed.
3. With that gamma, look for a faster budget around: a smaller one drafts faster, a larger one is accepted more.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vegas_bench.results.results import TuningRow
from vegas_spec.config import VegasConfig
from vegas_spec.pacing.cost_model import Costs, DraftLine, expected_accepted

BUDGETS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)
GAMMAS = (2, 3, 4, 5, 6, 8, 10, 12)
AROUND = (0.5, 0.7, 1.4, 2.0)
"""Budgets of step 3 beside those of step 1, as multiples of the one found before."""

GROWN = 0.02
"""Step 1 ends at the smallest budget whose acceptance is within this share of the most that any budget reached."""

HOPELESS = 0.92
"""A setting whose predicted speed is below this share of the best prediction is not measured."""


@dataclass(frozen=True)
class Measurement:
    """What one setting did on the workload.

    Attributes
    ----------
    accepted_per_iteration : float
        Drafts accepted.
    accepted_by_position : list of float
        Chance that the drafts at distance 1, 2, ... are all accepted.
    tokens_per_second : list of float
        Decoding speed, one per repeat.
    milliseconds : dict, optional
        Per iteration: ``draft`` (all steps), ``verify`` and what else there is, where the engine tells.

    """

    accepted_per_iteration: float
    accepted_by_position: list[float]
    tokens_per_second: list[float]
    milliseconds: dict[str, float] | None = None

    @property
    def speed(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.tokens_per_second)

    @property
    def iteration(self) -> float:
        """Seconds of an iteration, over the number of requests: what the cost model's speeds are made of."""
        return (self.accepted_per_iteration + 1) / self.speed


Measure = Callable[[VegasConfig], Measurement]


@dataclass
class Tuner:
    """Runs the three steps; every setting is measured at most once.

    Parameters
    ----------
    measure : callable
        Runs the workload with a config.
    base : VegasConfig
        The options that are not tuned; its gamma is that of step 1.
    plain : Measurement
        Decoding without drafts.
    budgets, gammas : sequence
        What steps 1 and 2 try.
    on_row : callable, optional
        Called with each point of a curve as it is known.

    """

    measure: Measure
    base: VegasConfig
    plain: Measurement
    budgets: Sequence[float] = BUDGETS
    gammas: Sequence[int] = GAMMAS
    on_row: Callable[[TuningRow], None] = lambda row: None
    measured: dict[tuple[int, float], Measurement] = field(default_factory=dict)
    rows: list[TuningRow] = field(default_factory=list)

    def run(self) -> VegasConfig:
        """Tune; `rows` then has the three curves."""
        gamma = self.base.num_speculative_tokens
        budget = self._grow_budget(gamma)
        gamma = self._fastest(2, [(each, budget) for each in sorted({*self.gammas, gamma})])[0]
        around = {*self.budgets, budget, *(_rounded(budget * factor) for factor in AROUND)}
        gamma, budget = self._fastest(3, [(gamma, each) for each in sorted(around) if each <= 1])
        return self._config(gamma, budget)

    def predict(self, gamma: int, budget: float) -> float:
        """Tokens per second that the cost model expects from what has been measured so far."""
        return 1 / self._expected_costs(budget).per_token(gamma, self._expected_accepted(gamma, budget))

    def _grow_budget(self, gamma: int) -> float:
        best = 0.0
        for budget in sorted(self.budgets):
            # Were all drafts accepted: what even then is slower than what has been seen can win no later step.
            if len(self.measured) > 1 and 1 / self._expected_costs(budget).per_token(gamma, gamma) < best:
                self._note(1, gamma, budget, self.predict(gamma, budget))
                continue
            best = max(best, self._measured(gamma, budget).speed)
            self._note(1, gamma, budget)
        found = {budget: point.accepted_per_iteration for (_, budget), point in self.measured.items()}
        enough = (1 - GROWN) * max(found.values())
        chosen = min(budget for budget, accepted in found.items() if accepted >= enough)
        self._choose(1, gamma, chosen)
        return chosen

    def _fastest(self, step: int, points: Sequence[tuple[int, float]]) -> tuple[int, float]:
        predicted = {point: self.predict(*point) for point in points}
        for point in points:
            if point in self.measured or predicted[point] >= HOPELESS * max(predicted.values()):
                self._measured(*point)
            self._note(step, *point, predicted[point])
        chosen = max((point for point in points if point in self.measured), key=lambda at: self.measured[at].speed)
        self._choose(step, *chosen)
        return chosen

    def _measured(self, gamma: int, budget: float) -> Measurement:
        if (gamma, budget) not in self.measured:
            self.measured[gamma, budget] = self.measure(self._config(gamma, budget))
        return self.measured[gamma, budget]

    def _config(self, gamma: int, budget: float) -> VegasConfig:
        return dataclasses.replace(self.base, num_speculative_tokens=gamma, kv_budget=budget)

    def _costs(self, point: tuple[int, float]) -> Costs:
        """Split a measured iteration into its parts, by the engine's own clock or by plain decoding's time."""
        measured, gamma = self.measured[point], point[0]
        whole, plain = measured.iteration, self.plain.iteration
        phases = measured.milliseconds
        if phases is None:
            # A verification takes about as long as a plain step; drafting takes the rest.
            return Costs(plain=plain, verify=plain, draft=max(0.0, whole - plain) / gamma)
        total = sum(phases.values())
        draft = whole * phases["draft"] / total
        select = whole * phases.get("select", 0.0) / total
        return Costs(plain=plain, verify=whole - draft - select, draft=draft / gamma, select=select)

    def _expected_costs(self, budget: float) -> Costs:
        """Costs of a setting that was not measured: verification's mean, and drafting's by its budget."""
        known = [self._costs(point) for point in self.measured]
        line = DraftLine([(point[1], each.draft) for point, each in zip(self.measured, known, strict=True)])
        return Costs(
            plain=self.plain.iteration,
            verify=statistics.mean(each.verify for each in known),
            select=statistics.mean(each.select for each in known),
            draft=line.at(budget),
        )

    def _expected_accepted(self, gamma: int, budget: float) -> float:
        """Acceptance to expect: that of the measured point with the nearest budget, of those the nearest gamma."""
        point = min(self.measured, key=lambda at: (abs(at[1] - budget), at[0] < gamma, abs(at[0] - gamma)))
        return expected_accepted(self.measured[point].accepted_by_position, gamma)

    def _note(self, step: int, gamma: int, budget: float, predicted: float | None = None) -> None:
        measured = self.measured.get((gamma, budget))
        row = TuningRow(
            step=step,
            varied="num_speculative_tokens" if step == 2 else "kv_budget",
            value=gamma if step == 2 else budget,
            num_speculative_tokens=gamma,
            kv_budget=budget,
            accepted_per_iteration=measured.accepted_per_iteration if measured else None,
            tokens_per_second=measured.tokens_per_second if measured else None,
            milliseconds=measured.milliseconds if measured else None,
            predicted_tokens_per_second=predicted,
        )
        self.rows.append(row)
        self.on_row(row)

    def _choose(self, step: int, gamma: int, budget: float) -> None:
        for at, row in enumerate(self.rows):
            if (row.step, row.num_speculative_tokens, row.kv_budget) == (step, gamma, budget):
                self.rows[at] = dataclasses.replace(row, chosen=True)


def _rounded(budget: float) -> float:
    """Three digits are enough to look around with; the smallest budget is a millionth."""
    return max(float(f"{budget:.3g}"), 1e-6)
