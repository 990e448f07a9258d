"""The pacer as a scheduler asks it: step by step, with no times of phases, and results that come in later."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Hashable, Sequence

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import CostModel
from vegas_spec.pacing.pacer import RESUME, Pacer
from vegas_spec.pacing.rates import EXPECTED_RATE
from vegas_spec.pacing.times import Choice, StepTimes

RECONSIDERED, DRIFT = 8, 16
"""Plain steps after which a decision is taken anew; sooner if the batch, or a sixteenth of its tokens, is another."""

LONGEST_CONTEXT = 2**24
"""Beyond which nobody asks from where on drafting gains."""


def adaptive_gammas(most: int, falls_back: bool) -> list[int]:
    """Numbers of drafts to choose from: thirds of the most, and none where the engine may fall back.

    Each has CUDA graphs of its own, of verification and of the draft loop, which is why they are few.
    """
    return sorted({-(-most * third // 3) for third in range(0 if falls_back else 1, 4)})


class StepPacer:
    """Decides, step by step, how many drafts follow.

    Parameters
    ----------
    config : VegasConfig
        What drafts read.
    model : CostModel
        What steps read.
    gammas : sequence of int
        Numbers of drafts to choose from, ascending.

    """

    def __init__(self, config: VegasConfig, model: CostModel, gammas: Sequence[int]) -> None:
        self.config, self.model, self.gammas = config, model, list(gammas)
        self._times = StepTimes(gammas[::-1])
        self._pacer = Pacer(gammas, self._times)
        self.gamma = gammas[-1]
        """Drafts that follow the latest step."""
        self._decided_on, self._since = (0, 0, 0), 0
        """Requests, those that draft, and tokens of the plain step that was decided on last; plain steps since."""
        self._results: dict[Hashable, tuple[int, int]] = {}
        self._unscored: set[Hashable] = set()
        """Requests whose next drafts follow a plain step, which scores nothing: they say little of others."""

    @property
    def requests(self) -> Collection[Hashable]:
        """Those that something is known of."""
        return {*self._pacer.requests, *self._results, *self._unscored}

    def observe(self, request: Hashable, drafted: int, accepted: int) -> None:
        """Take note of one request's verification."""
        if request in self._unscored:
            self._unscored.discard(request)
        else:
            self._results[request] = (drafted, accepted)

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        self._results.pop(request, None)
        self._pacer.forget(request)
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
        self._times.end(now)
        if not contexts or not drafting:
            self._times.begin(None, self.gamma, now)
            return self.gamma
        trying = self._pacer.trying
        self._pacer.observe(Choice(self.gamma), self._results)
        self._results = {}
        if self.gamma or trying or not self._much_the_same((len(contexts), len(drafting), sum(contexts))):
            self._times.costs = self.model.of_batch(self.config, contexts, len(drafting))
            gamma = self._pacer.choose(drafting, len(contexts) - len(drafting)).gamma
            if self.gamma == 0 and gamma:
                self._unscored = set(drafting)
            self.gamma = gamma
        self._times.begin(None if prompts else (self.gamma, len(contexts)), self.gamma, now)
        return self.gamma

    def _much_the_same(self, batch: tuple[int, int, int]) -> bool:
        """Whether a plain step is like the one that was decided on: plain steps are short, deciding is not."""
        before, self._since = self._decided_on, self._since + 1
        same = batch[:2] == before[:2] and abs(batch[2] - before[2]) * DRIFT <= before[2] and self._since < RECONSIDERED
        if not same:
            self._decided_on, self._since = batch, 0
        return same

    def shortest_gaining_context(self, batch: int) -> float:
        """Context from which drafting for a batch of equal requests is expected to gain; infinite if never."""

        def gains(context: int) -> bool:
            costs = self.model.of_batch(self.config, [context] * batch, batch)
            accepted = [sum(EXPECTED_RATE**distance for distance in range(1, gamma + 1)) for gamma in self.gammas]
            return max(map(costs.speedup, self.gammas, accepted)) > RESUME

        found = bisect.bisect_left(range(LONGEST_CONTEXT), True, lo=1, key=gains)
        return found if found < LONGEST_CONTEXT else math.inf
