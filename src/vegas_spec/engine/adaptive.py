"""The online mode in this engine: its pacer, and what an iteration tells it."""

from __future__ import annotations

from collections.abc import Sequence

from vegas_spec.config import VegasConfig
from vegas_spec.engine.request import Request
from vegas_spec.pacing.pacer import BUDGET_FACTORS, Pacer
from vegas_spec.pacing.times import PhaseTimes


class Adaptive:
    """Chooses draft length and budget, for all runs of one engine: what was learnt in one holds for the next.

    Parameters
    ----------
    config : VegasConfig
        With the most drafts and the largest budget.

    """

    def __init__(self, config: VegasConfig) -> None:
        self._times = PhaseTimes(BUDGET_FACTORS)
        self.pacer = Pacer(range(config.num_speculative_tokens + 1), self._times, BUDGET_FACTORS)
        self._present = self._next = self.pacer.choose([])

    @property
    def gamma(self) -> int:
        """Drafts per request of the present iteration."""
        return self._present.gamma

    def choose_next(self, batch: Sequence[Request]) -> float:
        """Choose for the iteration after the present one, and give the share of the budget that it drafts over.

        The present verification selects for it.
        """
        self._next = self.pacer.choose(batch)
        return self._next.budget_factor

    def observe(
        self,
        batch: Sequence[Request],
        num_drafts: Sequence[int],
        num_accepted: Sequence[int],
        draft_seconds: float,
        rest_seconds: float,
    ) -> None:
        """Take note of the present iteration, and go on to the next."""
        self._times.take(self._present, max(num_drafts), draft_seconds, rest_seconds)
        self.pacer.observe(self._present, dict(zip(batch, zip(num_drafts, num_accepted, strict=True), strict=True)))
        self._present = self._next

    def forget(self, requests: Sequence[Request]) -> None:
        """Drop what is known of requests that have ended."""
        for request in requests:
            self.pacer.forget(request)
