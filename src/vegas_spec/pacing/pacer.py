"""How much to draft: the one rule of it, for the embedded engine and for vLLM's scheduler.

An engine asks `Pacer.choose` before each iteration and tells `observe` what came of it. Chosen is what maximises

    sum over requests (1 + r + r^2 + .. + r^gamma) / seconds(gamma, budget)

with each request's acceptance rate ``r`` (`vegas_spec.pacing.rates`) and the time of an iteration: the cost model's,
and the measured one once there is one (`vegas_spec.pacing.times`). Falling back to plain decoding is gamma 0. Now and
then something else is tried (`vegas_spec.pacing.trials`): another budget or a neighbouring gamma while drafting, few
drafts while decoding plainly. Whatever is chosen, the output is the model's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np

from vegas_spec.pacing.rates import FIRM_PRIOR_WEIGHT, PRIOR_WEIGHT, AcceptanceRates, BudgetRates, Counts, Results
from vegas_spec.pacing.times import Choice, Times
from vegas_spec.pacing.trials import PROBE_COST, TRIAL_COST, TRIAL_LENGTH, Trial, TrialClock

BUDGET_FACTORS = (1.0, 0.5, 0.25)
"""Budgets to choose from where an engine can change them, as shares of the configured one."""

FIRST_GAMMAS = (4, 2, 6)
"""Drafts before anything was timed, where no cost model tells; different ones, to see what a verified row costs."""

PROBE_GAMMA = 2
"""Drafts of a trial while decoding plainly."""

SUSPEND, CHANGE, RESUME = 1.0, 1.02, 1.1
"""How many times as fast as the present choice another must seem, so that chance alone does not change it: any other
that was timed, ``CHANGE``; by the cost model alone, plain decoding ``SUSPEND``, and drafting after that ``RESUME``."""

DOUBT = 0.8
"""Share of the time that the cost model expects of drafts at which they should still be tried."""

HIGHEST_RATE = 0.995


class Pacer:
    """Chooses draft length and budget for a batch, iteration by iteration.

    Parameters
    ----------
    gammas : sequence of int
        Drafts per request to choose from, ascending.
    times : Times
        What iterations take.
    budget_factors : sequence of float
        Shares of the configured budget to choose from, the largest first; a single one leaves the budget alone.

    """

    def __init__(self, gammas: Sequence[int], times: Times, budget_factors: Sequence[float] = (1.0,)) -> None:
        self._gammas, self._times = list(gammas), times
        self._rates = AcceptanceRates(FIRM_PRIOR_WEIGHT if len(self._gammas) == 2 else PRIOR_WEIGHT)
        self._budgets = BudgetRates(budget_factors)
        self._present = Choice(self._gammas[-1], budget_factors[0])
        """What is chosen, but for trials."""
        timed_first = zip(itertools.cycle(FIRST_GAMMAS), budget_factors, strict=False)
        self._first = [] if times.prior else [Choice(min(g, self._gammas[-1]), factor) for g, factor in timed_first]
        self._trial: Trial | None = None
        self._trials = 0
        self._clock = TrialClock(times.trial_interval)

    @property
    def requests(self) -> Collection[Hashable]:
        """Those that something is known of."""
        return self._rates.requests

    @property
    def trying(self) -> bool:
        """Whether something else than what seems best is run at present."""
        return self._trial is not None

    def choose(self, requests: Sequence[Hashable], others: int = 0) -> Choice:
        """Choose for the next iteration.

        Parameters
        ----------
        requests : sequence
            What names each request that will draft; anything hashable.
        others : int
            Requests that run along and use no drafts.

        """
        if self._first:
            return self._first[0]
        if self._trial is None:
            self._choose_present(requests, others)
            if self._clock.ready and requests:
                self._trial = self._next_trial(requests, others)
        return self._present if self._trial is None else self._trial.choice

    def observe(self, choice: Choice, results: Results) -> None:
        """Take note of an iteration: what it was run with, and what became of its drafts."""
        counts = self._take_results(choice, results) if results else Counts()
        if self._trial is None:
            self._clock.wait()
            return
        self._trial.length += 1
        self._trial.seen.add(counts)
        if not self._trial.goes_on:
            if self._trial.turned:
                self._rates.begin_anew(list(results), self._trial.seen.rate)
            self._trial = None
            self._clock.over()

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        self._rates.forget(request)

    def _take_results(self, choice: Choice, results: Results) -> Counts:
        flat = np.fromiter(itertools.chain.from_iterable(results.values()), np.float64, 2 * len(results))
        drafted, accepted = flat[::2], flat[1::2]
        judged = np.minimum(drafted, accepted + 1)  # up to the first that is rejected
        counts = Counts(float(accepted.sum()), float(judged.sum()))
        if counts.judged:
            if choice.budget_factor == self._budgets.present:
                self._rates.observe(list(results), accepted, judged)
            self._budgets.observe(choice.budget_factor, counts)
            self._first = self._first[1:]
        return counts

    def _choose_present(self, requests: Sequence[Hashable], others: int) -> None:
        before, factor = self._present, self._present.budget_factor
        speeds = self._speeds(requests, others, factor)
        gamma = self._best(speeds)
        for other in self._budgets.factors:
            # Where nothing is drafted, moving costs nothing, and drafting over less may gain.
            if other != before.budget_factor and (gamma == 0 or self._budgets.tried_enough(other)):
                other_speeds = self._speeds(requests, others, other)
                fastest = max(other_speeds, key=other_speeds.__getitem__)
                if other_speeds[fastest] > speeds[gamma]:
                    speeds, gamma, factor = other_speeds, fastest, other
        if factor != before.budget_factor:
            self._rates.scale(self._budgets.move_to(factor))
        self._present = Choice(gamma, factor)
        self._times.move_to(self._present)
        if (factor, gamma > 0) != (before.budget_factor, before.gamma > 0):
            self._clock.changed()

    def _best(self, speeds: dict[int, float]) -> int:
        """The fastest number of drafts; the present one unless another is clearly faster."""
        best, present = max(speeds, key=lambda gamma: (speeds[gamma], gamma)), self._present.gamma
        margin = CHANGE
        if 0 in (best, present) and not self._times.timed(best):
            margin = RESUME if best else SUSPEND
        return best if speeds[best] > margin * speeds[present] else present

    def _would_gain(self, requests: Sequence[Hashable], others: int) -> bool:
        """Whether drafting would gain by what is accepted, if it took the time that the cost model says."""
        speeds = self._speeds(requests, others, self._present.budget_factor, self._times.modelled)
        return max(speeds.values()) > RESUME * speeds[0]

    def _speeds(
        self,
        requests: Sequence[Hashable],
        others: int,
        factor: float,
        times: Callable[[int, float], float] | None = None,
    ) -> dict[int, float]:
        """Expected tokens per unit of time with this budget, by the number of drafts; by the times known, or others."""
        times = times or self._times.seconds
        rates = np.minimum(self._rates.of(requests) * self._budgets.relative(factor), HIGHEST_RATE)
        chances = np.multiply.accumulate(np.broadcast_to(rates, (self._gammas[-1], len(rates))))
        committed = (len(rates) + others + np.concatenate([[0.0], chances.sum(1).cumsum()])).tolist()
        return {gamma: committed[gamma] / times(gamma, factor) for gamma in self._gammas}

    def _next_trial(self, requests: Sequence[Hashable], others: int) -> Trial | None:
        """What is to be tried next, if it is time."""
        present, plain = self._present, self._present.gamma == 0
        candidates = self._probes() if plain else self._neighbours()
        if not candidates:
            return None
        choice = candidates[self._trials % len(candidates)]
        known = float(self._rates.of(requests).mean()) if plain else None
        # Where drafting was given up for its time alone, that is to be timed again: it need not be so for ever.
        slow = plain and self._would_gain(requests, others)
        least = 0 if plain and self._times.timed(choice.gamma) and not slow else self._times.lag + TRIAL_LENGTH
        speed = self._speeds(requests, others, present.budget_factor)[present.gamma]
        slower = max(0.0, 1 - self._speeds(requests, others, choice.budget_factor)[choice.gamma] / speed)
        takes = self._times.seconds(*choice) / self._times.seconds(*present)
        loss = max(least, self._times.lag, 1) * slower * takes
        if self._times.prior:
            # Plain steps score nothing, so the first drafts after them are of little use.
            loss += takes - 1 if plain else choice.gamma == 0
        share = TRIAL_COST if choice.gamma == 0 or self._times.timed(choice.gamma) else PROBE_COST
        if plain:
            times = self._times.modelled if slow else self._times.seconds
            share = PROBE_COST * min(1.0, self._most_gain(len(requests), others, times))
        if not self._clock.due(loss, share):
            return None
        self._trials += 1
        return Trial(choice, least, known)

    def _probes(self) -> list[Choice]:
        gamma = next((gamma for gamma in self._gammas if gamma >= PROBE_GAMMA), self._gammas[-1])
        return [Choice(gamma, factor) for factor in self._budgets.factors]

    def _neighbours(self) -> list[Choice]:
        gamma, factor = self._present
        others = [Choice(gamma, other) for other in self._budgets.neighbours()]
        if self._times.prior:
            at = self._gammas.index(gamma)
            around = {*self._gammas[max(at - 1, 0) : at + 2], self._gammas[0]} - {gamma}
            others += [Choice(each, factor) for each in sorted(around)]
        return others

    def _most_gain(self, drafting: int, others: int, times: Callable[[int, float], float]) -> float:
        """What drafting would gain over plain decoding, by these times, if every draft were accepted; 0 if nothing."""
        plain = (drafting + others) / times(0, 1.0)
        gains = [0.0]
        for gamma, factor in itertools.product(self._gammas[1:], self._budgets.factors):
            seconds = times(gamma, factor) * (1.0 if self._times.timed(gamma) else DOUBT)
            gains.append((drafting * (gamma + 1) + others) / seconds / plain - 1)
        return max(gains)
