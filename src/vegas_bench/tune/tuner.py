"""The paper's three-step tuning, by measurement, with the cost model to leave out what cannot win.

1. With a fixed gamma, raise the budget until the number of accepted drafts stops growing.
2. With that budget, find the gamma of the highest decoding speed.
3. With that gamma, look for a faster budget around: a smaller one drafts faster, a larger one is accepted more.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from vegas_bench.measure.decoding import Decoding
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import TuningRow
from vegas_bench.tune.extrapolation import DraftLine, expected_accepted
from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import Costs

BUDGETS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)
GAMMAS = (2, 3, 4, 5, 6, 8, 10, 12)
AROUND = (0.5, 0.7, 1.4, 2.0)
"""Budgets of step 3 beside those of step 1, as multiples of the one found before."""

GROWN = 0.02
"""Step 1 ends at the smallest budget whose acceptance is within this share of the most that any budget reached."""

HOPELESS = 0.92
"""A setting whose predicted speed is below this share of the best prediction is not measured."""


Measure = Callable[[VegasConfig], Decoding]
"""Runs the workload with a config; `Decoding.accepted_per_iteration` of plain decoding may be None."""


@dataclass
class Tuner:
    """Runs the three steps; every setting is measured at most once, budgets that come to the same entries as one.

    Parameters
    ----------
    measure : callable
        Runs the workload with a config.
    base : VegasConfig
        The options that are not tuned; its gamma is that of step 1. Of settings that are equally fast, it is chosen
        before others, and less before more.
    plain : Decoding
        Without drafts.
    budgets, gammas : sequence
        What steps 1 and 2 try.
    entries : callable, optional
        Tells what drafts read with a budget, so that equal budgets are known as such.
    on_row : callable, optional
        Called with each point of a curve as it is known.

    """

    measure: Measure
    base: VegasConfig
    plain: Decoding
    budgets: Sequence[float] = BUDGETS
    gammas: Sequence[int] = GAMMAS
    entries: Callable[[float], Hashable] = lambda budget: budget
    on_row: Callable[[TuningRow], None] = lambda row: None
    measured: dict[tuple[int, float], Decoding] = field(default_factory=dict)
    rows: list[TuningRow] = field(default_factory=list)
    equals: dict[float, set[float]] = field(default_factory=dict)
    """Budgets that come to the same entries, by the one that is measured for all of them."""

    def run(self) -> VegasConfig:
        """Tune; `rows` then has the three curves."""
        gamma = self.base.num_speculative_tokens
        budget = self._grow_budget(gamma)
        gamma = self._fastest(2, [(each, budget) for each in sorted({*self.gammas, gamma})])[0]
        around = [budget, *self.budgets, *(_rounded(budget * factor) for factor in AROUND if budget * factor <= 1)]
        gamma, budget = self._fastest(3, [(gamma, each) for each in self._apart(around)])
        return self._config(gamma, budget)

    @property
    def notes(self) -> list[str]:
        """A sentence for each budget that was measured for others, too."""
        return [
            f"budgets {', '.join(f'{each:g}' for each in sorted(alike))} come to the same entries of these prompts "
            f"(kv_budget_min is {self.base.kv_budget_min}) and are measured once, as {stand_in:g}"
            for stand_in, alike in self.equals.items()
            if len(alike) > 1
        ]

    def predict(self, gamma: int, budget: float) -> float:
        """Tokens per second that the cost model expects from what has been measured so far."""
        return 1 / self._expected_costs(budget).per_token(gamma, self._expected_accepted(gamma, budget))

    def _grow_budget(self, gamma: int) -> float:
        best = 0.0
        for budget in self._apart(self.budgets):
            # Were all drafts accepted: what even then is slower than what has been seen can win no later step.
            if len(self.measured) > 1 and 1 / self._expected_costs(budget).per_token(gamma, gamma) < best:
                self._note(1, gamma, budget, self.predict(gamma, budget))
                continue
            best = max(best, self._measured(gamma, budget).speed)
            self._note(1, gamma, budget)
        found = {budget: point.accepted_per_iteration or 0.0 for (_, budget), point in self.measured.items()}
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
        measured = [point for point in points if point in self.measured]
        best = self.measured[max(measured, key=lambda at: self.measured[at].speed)]
        tied = [point for point in measured if as_fast(self.measured[point], best)]
        varied, usual = step - 2, (self.base.num_speculative_tokens, self.base.kv_budget)
        chosen = min(tied, key=lambda point: (point[varied] != usual[varied], point))
        self._choose(step, *chosen, tied)
        return chosen

    def _apart(self, budgets: Iterable[float]) -> list[float]:
        """Of budgets that come to the same entries keep one, ascending: the usual one, else the smallest."""
        for budget in sorted(budgets, key=lambda each: (each != self.base.kv_budget, each)):
            alike = (stand_in for stand_in in self.equals if self.entries(stand_in) == self.entries(budget))
            self.equals.setdefault(next(alike, budget), set()).add(budget)
        return sorted(stand_in for stand_in, others in self.equals.items() if others & {*budgets})

    def _measured(self, gamma: int, budget: float) -> Decoding:
        if (gamma, budget) not in self.measured:
            self.measured[gamma, budget] = self.measure(self._config(gamma, budget))
        return self.measured[gamma, budget]

    def _config(self, gamma: int, budget: float) -> VegasConfig:
        return dataclasses.replace(self.base, num_speculative_tokens=gamma, kv_budget=budget)

    def _costs(self, point: tuple[int, float]) -> Costs:
        """Split a measured iteration into its parts, by the engine's own clock or by plain decoding's time."""
        measured, gamma = self.measured[point], point[0]
        whole, plain = _seconds(measured), _seconds(self.plain)
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
            plain=_seconds(self.plain),
            verify=statistics.mean(each.verify for each in known),
            select=statistics.mean(each.select for each in known),
            draft=line.at(budget),
        )

    def _expected_accepted(self, gamma: int, budget: float) -> float:
        """Acceptance to expect: that of the measured point with the nearest budget, of those the nearest gamma."""
        point = min(self.measured, key=lambda at: (abs(at[1] - budget), at[0] < gamma, abs(at[0] - gamma)))
        return expected_accepted(self.measured[point].accepted_per_position or [], gamma)

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

    def _choose(self, step: int, gamma: int, budget: float, tied: Sequence[tuple[int, float]] = ()) -> None:
        for at, row in enumerate(self.rows):
            point = row.num_speculative_tokens, row.kv_budget
            if row.step == step:
                self.rows[at] = dataclasses.replace(row, chosen=point == (gamma, budget), tied=point in tied)


def as_fast(one: Decoding, fastest: Decoding) -> bool:
    """Whether the repeats cannot tell a setting from the fastest: the 95 % bootstrap intervals of their means meet."""
    return bootstrap_mean(one.tokens_per_second).high >= bootstrap_mean(fastest.tokens_per_second).low


def _seconds(measured: Decoding) -> float:
    """Time of an iteration, over the number of requests: what the cost model's speeds are made of."""
    return ((measured.accepted_per_iteration or 0.0) + 1) / measured.speed


def _rounded(budget: float) -> float:
    """Three digits are enough to look around with; the smallest budget is a millionth."""
    return max(float(f"{budget:.3g}"), 1e-6)
