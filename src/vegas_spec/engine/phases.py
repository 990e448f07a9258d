"""How the phases of an iteration attend: one interface, in plain torch or by the kernels of `vegas_spec.ops`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import Rows
from vegas_spec.engine.clock import Clock
from vegas_spec.engine.collect import Collector, QueryBuffer, ScoreBuffer
from vegas_spec.engine.kv_cache import DraftCache, KVCache
from vegas_spec.engine.recorder import Recorder
from vegas_spec.engine.request import Request
from vegas_spec.engine.steps import DraftStep, FullStep, SelectingDraftStep, Step
from vegas_spec.policies import Policy, Verified


class Phases(ABC):
    """Makes the steps of one run's batches, and keeps what a verification chose until the draft that follows it.

    Parameters
    ----------
    cache : KVCache
        Of this run.
    policy : Policy
        Who chooses, in this run alone: it may remember requests by their slots.
    config : VegasConfig
        Budget and draft length.

    Attributes
    ----------
    clock : Clock
        Of the cost of selecting: scores, choice, and a policy's upkeep.

    """

    def __init__(self, cache: KVCache, policy: Policy, config: VegasConfig) -> None:
        self.cache = cache
        self.policy = policy
        self.config = config
        self._most_entries = type(policy)(config).num_entries
        self.full_layers = [cache.layers[index] for index in cache.full_layers]
        self.clock = Clock(cache.keys[0].device)
        self._queries: QueryBuffer | None = None

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

    def use_budget(self, config: VegasConfig) -> None:
        """Select by another config from the next verification on, one that differs in a smaller budget alone."""
        self.config = self.policy.config = config

    def release(self, slot: int) -> None:
        """Forget the request of a slot, which has ended."""
        self.policy.release(slot)

    def _ask(self, batch: Sequence[Request], num_accepted: Sequence[int], scores: Tensor | None) -> Tensor | None:
        """Ask the policy, one set for every layer with full attention; sets ``num_selected`` of each request."""
        chosen = None
        if self.full_layers and self.policy.selects:
            verified = Verified(
                slots=[request.slot for request in batch],
                prefix_lens=[request.prefix_len for request in batch],
                num_accepted=num_accepted,
                keys=[self.cache.keys[layer.index] for layer in self.full_layers],
                scores=scores,
                queries=None if self._queries is None else self._queries.all(),
            )
            with self.clock:
                chosen = self.policy.select(verified)
        if chosen is None:
            counts = [self.policy.num_entries(request.prefix_len) for request in batch]
        else:
            counts = (chosen[0, :, 0] >= 0).sum(-1).tolist()
            chosen = chosen.expand(len(self.full_layers), -1, -1, -1)
        for request, count in zip(batch, counts, strict=True):
            request.num_selected = count
        return chosen


class TorchPhases(Phases):
    """Plain torch, on any device and in any dtype: the definition at work.

    Parameters
    ----------
    cache, policy, config
        See `Phases`.
    recorder : Recorder, optional
        Observes the run.

    Attributes
    ----------
    draft_caches : dict of int to DraftCache
        By slot, for requests that draft over selected entries.

    """

    def __init__(self, cache: KVCache, policy: Policy, config: VegasConfig, recorder: Recorder | None = None) -> None:
        super().__init__(cache, policy, config)
        self.recorder = recorder
        self.draft_caches: dict[int, DraftCache] = {}
        self._prefix_lens: dict[int, int] = {}
        self._scores: ScoreBuffer | None = None

    def draft(self, batch: Sequence[Rows]) -> DraftStep:
        """See `Phases.draft`."""
        if self.policy.per_step:
            prefix_lens = [self._prefix_lens[rows.slot] for rows in batch]
            return SelectingDraftStep(self.cache, batch, self.policy, prefix_lens, self.clock, self.recorder)
        return DraftStep(self.cache, batch, [self.draft_caches.get(rows.slot) for rows in batch], self.recorder)

    def verify(self, batch: Sequence[Rows]) -> FullStep:
        """See `Phases.verify`."""
        wanted = self.policy.score_request
        self._scores = ScoreBuffer(wanted, self.cache, batch) if wanted and self.full_layers else None
        self._queries = QueryBuffer(self.cache) if self.policy.keeps_queries and self.full_layers else None
        collectors: list[Collector] = [each for each in (self._scores, self._queries) if each is not None]
        return FullStep(self.cache, batch, collectors, self.clock, self.recorder)

    def select(self, batch: Sequence[Request], num_accepted: Sequence[int]) -> None:
        """See `Phases.select`; gathers the chosen entries, once for all steps of the draft."""
        scores = None if self._scores is None else self._scores.of(num_accepted)
        chosen = self._ask(batch, num_accepted, scores)
        if self.recorder is not None:
            self.recorder.selected(batch, num_accepted, chosen)
        for place, request in enumerate(batch):
            self._prefix_lens[request.slot] = request.prefix_len
            if chosen is None or request.finished:
                continue
            if request.slot not in self.draft_caches:
                width = self._most_entries(request.max_length) + 2 * self.config.num_speculative_tokens
                self.draft_caches[request.slot] = DraftCache(self.cache, request.slot, width)
            draft_cache = self.draft_caches[request.slot]
            for index, layer in enumerate(self.full_layers):
                positions = chosen[index, place, : layer.num_kv_heads, : request.num_selected]
                draft_cache.gather(layer.index, positions, request.prefix_len, len(request.token_ids) - 1)

    def release(self, slot: int) -> None:
        """See `Phases.release`."""
        super().release(slot)
        self.draft_caches.pop(slot, None)
