"""The online mode in this engine: its controller, and what an iteration tells it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vegas_spec.config import VegasConfig
from vegas_spec.engine.request import Request
from vegas_spec.pacing.controller import AdaptiveController


class Adaptive:
    """Chooses draft length and budget, for all runs of one engine: what was learnt in one holds for the next.

    Parameters
    ----------
    config : VegasConfig
        With the most drafts and the largest budget.

    """

    def __init__(self, config: VegasConfig) -> None:
        self._controller = AdaptiveController(config.num_speculative_tokens)
        self._present = self._next = self._controller.choose([])

    @property
    def gamma(self) -> int:
        """Drafts per request of the present iteration."""
        return self._present.gamma

    def choose_next(self, batch: Sequence[Request]) -> float:
        """Choose for the iteration after the present one, and give the share of the budget that it drafts over.

        The present verification selects for it.
        """
        self._next = self._controller.choose([request.slot for request in batch])
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
        results: dict[Hashable, tuple[int, int]] = {
            request.slot: (drafted, accepted)
            for request, drafted, accepted in zip(batch, num_drafts, num_accepted, strict=True)
        }
        self._controller.observe(self._present, results, draft_seconds, rest_seconds)
        self._present = self._next

    def forget(self, request: Request) -> None:
        """Drop what is known of a request that has ended; another one takes its slot."""
        self._controller.forget(request.slot)
