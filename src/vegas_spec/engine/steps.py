"""What attention does in one forward pass: reading a prompt, verifying drafts, or drafting.

A step travels from the engine to every attention layer as a keyword argument of the model's forward pass. It is handed
the layer's queries, keys and values of a packed batch (all requests' rows one after the other, no padding).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.engine.attention import AttentionParams, CausalMask, Rows, attend
from vegas_spec.engine.clock import Clock
from vegas_spec.engine.collect import Collector
from vegas_spec.engine.kv_cache import DraftCache, KVCache
from vegas_spec.engine.recorder import Recorder
from vegas_spec.policies import Drafting, Policy, Queries


class Step(ABC):
    """One forward pass, as attention layers see it."""

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention of all rows of the batch in one layer.

        Parameters
        ----------
        layer : int
            The layer's index.
        query, key, value : Tensor
            Of the new tokens, position-encoded, shapes ``[num_query_heads, rows, head_dim]`` and, twice,
            ``[num_kv_heads, rows, head_dim]``.
        params : AttentionParams
            What the layer computes.

        Returns
        -------
        Tensor
            Shape ``[rows, num_query_heads, head_dim]``.

        """


class FullStep(Step):
    """Rows that read the whole cache: a piece of a prompt, or a verification.

    Writes the rows' exact keys and values, over the approximate ones that drafting may have left.

    Parameters
    ----------
    cache : KVCache
        Of the run.
    batch : sequence of Rows
        The rows, packed in this order.
    collectors : sequence of Collector
        What to keep for the selection; timed by `clock`.
    clock : Clock, optional
        Of the cost of selecting.
    recorder : Recorder, optional
        Observes the rows.

    """

    def __init__(
        self,
        cache: KVCache,
        batch: Sequence[Rows],
        collectors: Sequence[Collector] = (),
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._collectors = collectors
        self._clock = clock or Clock(cache.keys[0].device)
        self._recorder = recorder
        self._masks: dict[tuple[int, int | None], CausalMask] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Step.attend`."""
        out, seen, first = [], [], 0
        for place, rows in enumerate(self._batch):
            own = slice(first, first + rows.count)
            first += rows.count
            self._cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
            begin = 0 if params.sliding_window is None else max(0, rows.start + 1 - params.sliding_window)
            keys, values = self._cache.read(layer, rows.slot, begin, rows.stop)
            if (place, params.sliding_window) not in self._masks:
                mask = CausalMask(rows, begin, params.sliding_window, query.device)
                self._masks[place, params.sliding_window] = mask
            mask = self._masks[place, params.sliding_window]
            out.append(attend(query[:, own], keys, values, mask, params))
            seen.append((query[:, own], keys, mask))
        if params.sliding_window is None:
            if self._collectors:
                with self._clock:
                    for collector in self._collectors:
                        for place, (queries, keys, mask) in enumerate(seen):
                            collector.collect(layer, place, queries, keys, mask, params)
            if self._recorder is not None:
                for rows, (queries, keys, _) in zip(self._batch, seen, strict=True):
                    self._recorder.verified(layer, rows, Queries(queries, params.scale, params.sinks), keys)
        return torch.cat(out)


class DraftStep(Step):
    """One row per request that reads only what was selected and what came since; sliding layers read their window.

    Parameters
    ----------
    cache : KVCache
        Of the run.
    batch : sequence of Rows
        One row each.
    drafts : sequence of DraftCache or None
        What each request reads in layers with full attention; None for all of the cache.
    recorder : Recorder, optional
        Observes the rows.

    """

    def __init__(
        self,
        cache: KVCache,
        batch: Sequence[Rows],
        drafts: Sequence[DraftCache | None],
        recorder: Recorder | None = None,
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._drafts = drafts
        self._recorder = recorder

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Step.attend`."""
        out = []
        for place, (rows, selected) in enumerate(zip(self._batch, self._drafts, strict=True)):
            own = slice(place, place + 1)
            if selected is not None and params.sliding_window is None:
                selected.append(layer, key[:, own], value[:, own])
                keys, values = selected.read(layer)
            else:
                self._cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
                begin = 0 if params.sliding_window is None else max(0, rows.stop - params.sliding_window)
                keys, values = self._cache.read(layer, rows.slot, begin, rows.stop)
            out.append(attend(query[:, own], keys, values, None, params))
            if self._recorder is not None and params.sliding_window is None:
                self._recorder.drafted(layer, rows, Queries(query[:, own], params.scale, params.sinks), keys)
        return torch.cat(out)


class SelectingDraftStep(DraftStep):
    """A draft step for a policy that selects by the step's own queries, in every layer with full attention.

    Its keys and values go into the cache, past the committed tokens, until the verification writes over them.

    Parameters
    ----------
    cache, batch, recorder
        See `DraftStep`.
    policy : Policy
        Who selects.
    prefix_lens : sequence of int
        Of each request.
    clock : Clock
        Of the cost of selecting.

    """

    def __init__(
        self,
        cache: KVCache,
        batch: Sequence[Rows],
        policy: Policy,
        prefix_lens: Sequence[int],
        clock: Clock,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(cache, batch, [None] * len(batch), recorder)
        self._policy = policy
        self._prefix_lens = prefix_lens
        self._clock = clock

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Step.attend`."""
        if params.sliding_window is not None:
            return super().attend(layer, query, key, value, params)
        for place, rows in enumerate(self._batch):
            own = slice(place, place + 1)
            self._cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
        drafting = Drafting(
            slots=[rows.slot for rows in self._batch],
            prefix_lens=self._prefix_lens,
            seq_lens=[rows.stop for rows in self._batch],
            queries=Queries(query, params.scale, params.sinks),
            keys=self._cache.keys[layer],
        )
        with self._clock:
            chosen = self._policy.select_step(self._cache.full_layers[layer], drafting)
        out = []
        for place, (rows, prefix_len) in enumerate(zip(self._batch, self._prefix_lens, strict=True)):
            positions = chosen[place, :, : self._policy.num_entries(prefix_len)]
            keys, values = self._cache.gather(layer, rows.slot, positions, prefix_len, rows.stop)
            row = query[:, place : place + 1]
            out.append(attend(row, keys, values, None, params))
            if self._recorder is not None:
                self._recorder.drafted(layer, rows, Queries(row, params.scale, params.sinks), keys, positions)
        return torch.cat(out)
