"""Online mode: how many tokens to draft, over how much of the cache, from what was accepted and what it took.

A controller in plain Python: an engine asks `AdaptiveController.choose` before each iteration and tells `observe` what
came of it. The choice maximises what the cost model expects of the next iteration,

    sum over requests (1 + accepted) / (rest + gamma * draft)

with ``accepted`` from each request's own acceptance rate, ``draft`` the time of a draft step and ``rest`` that of
verification, acceptance and selection, a straight line in gamma; or with times that the engine supplies. Whatever is
chosen, the output is the model's.

Smaller budgets are tried now and then, the less often the less it changed; `vegas_spec.pacing.budgets` compares them.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from vegas_spec.pacing.budgets import TRIAL_LENGTH, Budgets
from vegas_spec.pacing.expected_speed import Times, cannot_gain, expected_speeds
from vegas_spec.pacing.running_means import EXPECTED_RATE, AcceptanceRate, Counts, DecayedLine

BUDGET_FACTORS = (1.0, 0.5, 0.25)
"""Budgets that are tried, as shares of the configured one."""

FIRST_TRIAL, LAST_TRIAL, LONGER = 4.0, 64.0, 1.15
"""Iterations between trials of another budget: at first, at most, and how much more after each that changed nothing."""

PROBE_GAMMA, PROBE_COST, PROBE_LENGTH = 2, 0.015, 8
"""Where drafting does not gain, this many drafts are tried now and then, for this share of the time; as long as all of
them are accepted, this many iterations in a row."""

FIRST_GAMMAS = (4, 2, 6)
"""Drafts before any was seen; different ones, to see what a verified row costs."""


@dataclass(frozen=True)
class Choice:
    """Drafts per request, and the share of the configured budget, for the next iteration."""

    gamma: int
    budget_factor: float


class AdaptiveController:
    """Chooses draft length and budget for a batch, iteration by iteration.

    Parameters
    ----------
    max_gamma : int
        Most drafts per request; 0 to this many are chosen.
    budget_factors : sequence of float
        Shares of the configured budget to choose from, the largest first; a single one leaves the budget alone.
    gammas : sequence of int, optional
        Drafts per request to choose from, ascending, instead of 0 to ``max_gamma``.
    inertia : float
        How many times as fast another number of drafts must be expected to be before it is chosen.
    expected_rate : float
        Chance that a draft is accepted, given the one before, that is expected before any was seen.
    probe_cost : float
        Share of the time that trying drafts may take where drafting was given up.

    """

    def __init__(
        self,
        max_gamma: int,
        budget_factors: Sequence[float] = BUDGET_FACTORS,
        gammas: Sequence[int] | None = None,
        inertia: float = 1.0,
        expected_rate: float = EXPECTED_RATE,
        probe_cost: float = PROBE_COST,
    ) -> None:
        self._max_gamma = max_gamma
        self._gammas = range(max_gamma + 1) if gammas is None else gammas
        self._probe_gamma = next(gamma for gamma in self._gammas if gamma >= min(PROBE_GAMMA, max_gamma))
        self._inertia, self._probe_cost = inertia, probe_cost
        self._latest: int | None = None
        """Drafts chosen last."""
        self._budgets = Budgets(budget_factors)
        self._rates: dict[Hashable, AcceptanceRate] = {}
        self._everyone = AcceptanceRate(expected_rate)
        self._rest = DecayedLine()
        self._to_time = [
            Choice(min(gamma, max_gamma), factor)
            for gamma, factor in zip(itertools.cycle(FIRST_GAMMAS), budget_factors, strict=False)
        ]
        """What is run first, so that there are times to choose by."""
        self._interval = self._until_trial = FIRST_TRIAL
        self._trial: Choice | None = None
        self._trial_left = 0
        self._trials = 0
        self._until_probe = 0.0
        self._probing: Counts | None = None

    @property
    def probing(self) -> bool:
        """Whether it tries at present if drafting, given up before, would gain."""
        return self._probing is not None

    def choose(self, requests: Sequence[Hashable], times: Times | None = None, others: int = 0) -> Choice:
        """Choose for the next iteration of these requests.

        Parameters
        ----------
        requests : sequence
            What names each request that will draft; anything hashable.
        times : callable, optional
            What an iteration takes by its number of drafts; the times that were observed if None.
        others : int
            Requests that run along and use no drafts.

        """
        if times is None and self._to_time:
            return self._to_time[0]
        if self._trial is not None:
            return self._trial
        speed, gamma = self._best(self.speeds(requests, times, others))
        for factor in self._budgets.factors:
            # Where nothing is drafted, moving costs nothing, and drafting over less may gain.
            if factor != self._budgets.present and (gamma == 0 or self._budgets.tried_enough(factor)):
                other_speed, other_gamma = self._best(self.speeds(requests, times, others, factor))
                if other_speed > speed:
                    speed, gamma = other_speed, other_gamma
                    self._move_to(factor)
        self._latest = gamma
        if gamma == 0:
            return self._probe(times or self._measured(self._budgets.present), len(requests), others)
        if self._until_trial <= 0:
            self._trial = self._next_trial(gamma)
            self._trial_left = TRIAL_LENGTH
        return self._trial or Choice(gamma, self._budgets.present)

    def observe(
        self,
        choice: Choice,
        results: Mapping[Hashable, tuple[int, int]],
        draft_seconds: float | None = None,
        rest_seconds: float | None = None,
    ) -> None:
        """Take note of an iteration.

        Parameters
        ----------
        choice : Choice
            What it was run with.
        results : mapping
            By request, how many tokens were drafted and how many of them accepted.
        draft_seconds, rest_seconds : float, optional
            Time of all draft steps; of everything else. Not needed where `choose` is told the times.

        """
        steps = max((drafted for drafted, _ in results.values()), default=0)
        if rest_seconds is not None:
            self._rest.add(steps, rest_seconds)
        if steps:
            if draft_seconds is not None:
                self._budgets.take_time(choice.budget_factor, draft_seconds / steps)
            self._take_acceptance(choice.budget_factor, results)
            if self._to_time:
                self._to_time.pop(0)
        self._until_probe -= 1
        if self._trial is None:
            self._until_trial -= 1
        elif self._probing is not None:
            self._take_probe(results)
        elif steps:
            self._trial_left -= 1
            if not self._trial_left:
                self._trial = None
                self._interval = min(LONGER * self._interval, LAST_TRIAL)
                self._until_trial = self._interval

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        self._rates.pop(request, None)

    def _probe(self, times: Times, drafting: int, others: int) -> Choice:
        """Decode plainly, or try whether drafting would gain, with one budget after the other."""
        # With a smaller budget, drafting may gain where it cannot with this one.
        hopeless = len(self._budgets.factors) == 1 and cannot_gain(self._gammas, times, drafting, others)
        if self._until_probe > 0 or not drafting or hopeless:
            return Choice(0, self._budgets.present)
        factors = self._budgets.factors
        self._trials += 1
        self._probing = Counts()
        gamma = self._probe_gamma
        self._until_probe = (times(gamma) / times(0) - 1) / self._probe_cost
        self._trial = Choice(gamma, factors[self._trials % len(factors)])
        return self._trial

    def _take_probe(self, results: Mapping[Hashable, tuple[int, int]]) -> None:
        assert self._probing is not None
        if not results:
            return
        drafted, accepted = (sum(each) for each in zip(*results.values(), strict=True))
        if not drafted:  # an output's end left no room for drafts
            return
        self._probing.add(accepted, sum(min(d, a + 1) for d, a in results.values()))
        if accepted == drafted and self._probing.tries < PROBE_LENGTH * drafted:
            return
        if accepted == drafted:
            # The text has turned: what was known of it holds no more.
            for known in (*(self._rate_of(request) for request in results), self._everyone):
                known.begin_anew(self._probing.rate)
        self._trial = self._probing = None

    def _take_acceptance(self, factor: float, results: Mapping[Hashable, tuple[int, int]]) -> None:
        counts = Counts()
        for drafted, accepted in results.values():
            counts.add(accepted, min(drafted, accepted + 1))
        if factor == self._budgets.present:
            for request, (drafted, accepted) in results.items():
                self._rate_of(request).observe(drafted, accepted)
                self._everyone.observe(drafted, accepted)
        self._budgets.take_acceptance(factor, counts)

    def _rate_of(self, request: Hashable) -> AcceptanceRate:
        if request not in self._rates:
            self._rates[request] = AcceptanceRate(self._everyone.value)
        return self._rates[request]

    def _move_to(self, factor: float) -> None:
        rate = self._budgets.move_to(factor)
        for known in (*self._rates.values(), self._everyone):
            known.scale(rate)
        self._interval = self._until_trial = max(FIRST_TRIAL, self._interval / 2)

    def speeds(
        self, requests: Sequence[Hashable], times: Times | None = None, others: int = 0, factor: float | None = None
    ) -> dict[int, float]:
        """Expected tokens per unit of time by the number of drafts; arguments as for `choose`, and a budget."""
        factor = self._budgets.present if factor is None else factor
        relative, seconds = self._budgets.relative_rate(factor), times or self._measured(factor)
        rates = [min(max(self._rate_of(request).value * relative, 0.0), 0.995) for request in requests]
        return expected_speeds(rates, self._gammas, seconds, others)

    def _measured(self, factor: float) -> Times:
        draft = self._budgets.draft_time(factor)
        return lambda gamma: self._rest.at(gamma) + gamma * draft

    def _best(self, speeds: Mapping[int, float]) -> tuple[float, int]:
        """Highest speed, and the number of drafts that gives it; the latest one unless another is clearly better."""
        gamma, latest = max(speeds, key=lambda gamma: (speeds[gamma], gamma)), self._latest
        if latest is not None and speeds[gamma] <= self._inertia * speeds[latest]:
            gamma = latest
        return speeds[gamma], gamma

    def _next_trial(self, gamma: int) -> Choice | None:
        others = self._budgets.neighbours()
        self._trials += 1
        return Choice(gamma, others[self._trials % len(others)]) if others else None
