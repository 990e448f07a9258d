"""Online mode in vLLM: how many drafts follow a step, from what was accepted and what steps take.

`controller.AdaptiveController` chooses, from a few numbers of drafts. What a step takes is supplied to it: the bytes of
`fall_back.Cost`, times what steps with as many drafts were measured to take per byte, between one decision and
the next. A number of drafts that was never timed is taken to be as fast per byte as the nearest one that was.

Neighbours of the present choice, and plain decoding, are tried for a few steps now and then, so that they have times;
how long until the next trial depends on what the last one was expected to lose.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.controller import PROBE_COST, AdaptiveController, Choice
from vegas_spec.pacing.expected_speed import cannot_gain
from vegas_spec.pacing.fall_back import Cost, entries_read
from vegas_spec.pacing.running_means import DecayedMean

EXPECTED_RATE = 0.9
"""Chance of a draft, given the one before, at first: of six, as many are accepted as `fall_back` expects."""

INERTIA = 1.02
"""How many times as fast another number of drafts must seem: at a border, chance alone should not change it."""

SETTLED = 3
"""Steps of the same kind after which the next is timed: what was begun before has left the pipeline by then."""

TRIAL_LENGTH, TRIAL_COST, BETWEEN_TRIALS = 8, 0.007, 64
"""Steps of a trial; share of the time that trials may lose; fewest steps from one to the next."""

DOUBT = 0.8
"""Share of the present time per byte at which drafting must still be unable to gain, for trials of it to end."""


def draft_lengths(gamma: int, falls_back: bool) -> list[int]:
    """Numbers of drafts to choose from: thirds of the most, and none where the engine may fall back.

    Each has CUDA graphs of its own, of verification and of the draft loop, which is why they are few.
    """
    return sorted({-(-gamma * third // 3) for third in range(0 if falls_back else 1, 4)})


class Online:
    """Decides, step by step, how many drafts follow.

    Parameters
    ----------
    config : VegasConfig
        With the most drafts.
    cost : Cost
        What steps read.
    lengths : sequence of int
        Drafts to choose from, ascending.

    """

    def __init__(self, config: VegasConfig, cost: Cost, lengths: Sequence[int]) -> None:
        self.config, self.cost, self.lengths = config, cost, list(lengths)
        # A probe's first drafts teach nothing, and it lasts until its results are in: about three steps.
        self.controller = AdaptiveController(
            self.lengths[-1], [1.0], self.lengths, INERTIA, EXPECTED_RATE, probe_cost=PROBE_COST / 3
        )
        self.length = self.lengths[-1]
        """Drafts that follow the latest step."""
        self.pace = {length: DecayedMean(50.0) for length in self.lengths}
        """Seconds per byte of `cost`, by the number of drafts."""
        self._results: dict[Hashable, tuple[int, int]] = {}
        self._unscored: set[Hashable] = set()
        """Requests whose next drafts follow a plain step, which scores nothing: they say little of others."""
        self._kind: tuple[int, int] | None = None
        self._same_kind = 0
        self._began, self._bytes = 0.0, 0.0
        self._trial: int | None = None
        self._trial_left, self._until_trial, self._trials = 0, float(BETWEEN_TRIALS), 0

    def observe(self, request: Hashable, drafted: int, accepted: int) -> None:
        """Take note of one request's verification."""
        if request in self._unscored:
            self._unscored.discard(request)
        else:
            self._results[request] = (drafted, accepted)

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        self._results.pop(request, None)
        self.controller.forget(request)
        self._unscored.discard(request)

    def decide(self, contexts: Sequence[int], drafting: Sequence[Hashable], prompts: bool, now: float) -> int:
        """How many drafts follow the step that was just scheduled.

        Parameters
        ----------
        contexts : sequence of int
            Tokens of each decoding request; they may be none.
        drafting : sequence
            Those of the requests that use drafts.
        prompts : bool
            Whether the step has prompts in it.
        now : float
            Seconds.

        """
        if not contexts or not drafting:
            self._kind = None
            return self.length
        self._take_time(now)
        self.controller.observe(Choice(self.length, 1.0), self._results)
        self._results = {}
        model = self._bytes_by_length(contexts, len(drafting))
        length = self._choose(drafting, len(contexts) - len(drafting), model)
        if self.length == 0 and length:
            self._unscored = set(drafting)
        self.length = length
        kind = None if prompts else (length, len(contexts))
        self._same_kind = self._same_kind + 1 if kind is not None and kind == self._kind else 0
        self._kind, self._began, self._bytes = kind, now, model(length)
        return length

    def _bytes_by_length(self, contexts: Sequence[int], drafting: int) -> Callable[[int], float]:
        tokens, read = sum(contexts), entries_read(self.config, contexts)
        plain, step = self.cost.plain(tokens), self.cost.draft(read)
        return lambda length: self.cost.verify(tokens, length * drafting) + length * step if length else plain

    def _take_time(self, now: float) -> None:
        seconds = now - self._began
        if self._kind is None or self._same_kind < SETTLED or seconds <= 0:
            return
        # A step that took long because the machine did something else says nothing.
        known = [pace.mean for pace in self.pace.values() if pace.weight]
        pace = seconds / self._bytes
        self.pace[self.length].add(min([pace, *(3 * each for each in known)]))

    def _pace_of(self, length: int) -> float:
        timed = [other for other in self.lengths if self.pace[other].weight >= SETTLED]
        if not timed:
            return 1.0
        return self.pace[min(timed, key=lambda other: abs(other - length))].mean

    def _choose(self, drafting: Sequence[Hashable], others: int, model: Callable[[int], float]) -> int:
        if self._trial is not None and self._trial_left:
            self._trial_left -= 1
            return self._trial
        self._trial = None
        times = {length: model(length) * self._pace_of(length) for length in self.lengths}
        length = self.controller.choose(drafting, times.__getitem__, others).gamma
        self._until_trial -= 1
        if self._until_trial <= 0 and not self.controller.probing:
            self._begin_trial(length, times, drafting, others)
        return length if self._trial is None else self._trial

    def _begin_trial(self, length: int, times: Mapping[int, float], drafting: Sequence[Hashable], others: int) -> None:
        place = self.lengths.index(length)
        around = self.lengths[max(place - 1, 0) : place + 2]
        candidates = sorted({*around, *(each for each in self.lengths if each == 0)} - {length})
        self._until_trial = BETWEEN_TRIALS
        if not candidates or (
            length == 0
            and cannot_gain(self.lengths, lambda each: times[each] * (DOUBT if each else 1.0), len(drafting), others)
        ):
            return
        self._trials += 1
        other = candidates[self._trials % len(candidates)]
        speeds = self.controller.speeds(drafting, times.__getitem__, others)
        # From plain decoding, the first drafts are good for little.
        steps = TRIAL_LENGTH * max(0.0, 1 - speeds[other] / speeds[length]) + (length == 0)
        self._until_trial = max(BETWEEN_TRIALS, steps * times[other] / (TRIAL_COST * times[length]))
        self._trial, self._trial_left = other, TRIAL_LENGTH - 1
