"""How the phases of an iteration attend: one interface, in plain torch or by the kernels of `vegas_spec.ops`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import Rows
from vegas_spec.engine.kv_cache import DraftCache, KVCache
from vegas_spec.engine.request import Request
from vegas_spec.engine.steps import DraftStep, FullStep, ScoreBuffer, Step
from vegas_spec.policies import Policy


class Phases(ABC):
    """Makes the steps of one run's batches, and keeps what a verification chose until the draft that follows it.

    Parameters
    ----------
    cache : KVCache
        Of this run.
    policy : Policy
        Who chooses.
    config : VegasConfig
        Budget and draft length.

    """

    def __init__(self, cache: KVCache, policy: Policy, config: VegasConfig) -> None:
        self.cache = cache
        self.policy = policy
        self.config = config
        self.full_layers = [layer for layer in cache.layers if layer.sliding_window is None]

    def prefill(self, rows: Rows) -> Step:
        """Make the step that reads a piece of a prompt."""
        return FullStep(self.cache, [rows])

    @abstractmethod
    def draft(self, batch: Sequence[Rows]) -> Step:
        """Make the step that drafts one token for each of these requests, all of them verified before."""

    @abstractmethod
    def verify(self, batch: Sequence[Rows]) -> Step:
        """Make the step that verifies; it collects what the policy asks for."""

    @abstractmethod
    def select(self, batch: Sequence[Request], num_accepted: Sequence[int]) -> None:
        """Choose what the next draft reads, for the requests of the last verification in the same order.

        Sets ``num_selected`` of each request.
        """


class TorchPhases(Phases):
    """Plain torch, on any device and in any dtype: the definition at work.

    Attributes
    ----------
    draft_caches : dict of int to DraftCache
        By slot, for requests that draft over selected entries.

    """

    def __init__(self, cache: KVCache, policy: Policy, config: VegasConfig) -> None:
        super().__init__(cache, policy, config)
        self._scores: ScoreBuffer | None = None
        self.draft_caches: dict[int, DraftCache] = {}

    def draft(self, batch: Sequence[Rows]) -> DraftStep:
        """See `Phases.draft`."""
        return DraftStep(self.cache, batch, [self.draft_caches.get(rows.slot) for rows in batch])

    def verify(self, batch: Sequence[Rows]) -> FullStep:
        """See `Phases.verify`."""
        wanted = self.policy.score_request
        self._scores = ScoreBuffer(wanted, self.cache, batch) if wanted and self.full_layers else None
        return FullStep(self.cache, batch, self._scores)

    def select(self, batch: Sequence[Request], num_accepted: Sequence[int]) -> None:
        """See `Phases.select`; gathers the chosen entries, once for all steps of the draft."""
        chosen = None
        if self.full_layers:
            prefix_lens = torch.tensor([request.prefix_len for request in batch], device=self.cache.keys[0].device)
            scores = None if self._scores is None else self._scores.of(num_accepted)
            chosen = self.policy.select(scores, prefix_lens)
        for place, request in enumerate(batch):
            request.num_selected = request.prefix_len
            if chosen is None or request.finished:
                self.draft_caches.pop(request.slot, None)
                continue
            request.num_selected = int((chosen[0, place, 0] >= 0).sum())
            if request.slot not in self.draft_caches:
                width = self.config.budget(request.max_length) + 2 * self.config.num_speculative_tokens
                self.draft_caches[request.slot] = DraftCache(self.cache, request.slot, width)
            draft_cache = self.draft_caches[request.slot]
            for index, layer in enumerate(self.full_layers):
                positions = chosen[index, place, : layer.num_kv_heads, : request.num_selected]
                draft_cache.gather(layer.index, positions, request.prefix_len, len(request.token_ids) - 1)
