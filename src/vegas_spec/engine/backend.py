"""Interface of the engine's backends (torch, kernels): who attends in a forward pass, and who asks the policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import AttentionParams, CausalMask, RowSpan, attend
from vegas_spec.engine.clock import Clock
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.policies import Policy, Queries, Room, Verified, make_policy
from vegas_spec.policies.keys import PAGE_SIZE, DenseKeys

Kind = Literal["prompt", "verify", "draft"]
"""Of a forward pass: a piece of a prompt, a verification, or one draft step."""


class Attending(ABC):
    """What attention layers call in a forward pass: it travels to them as a keyword argument of the model."""

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attention of all rows of the batch in one layer.

        Parameters
        ----------
        layer : int
            The layer's index.
        query, key, value : Tensor
            Of the new tokens of all requests, one after the other without padding, position-encoded; shapes
            ``[num_query_heads, rows, head_dim]`` and, twice, ``[num_kv_heads, rows, head_dim]``.
        params : AttentionParams
            What the layer computes.

        Returns
        -------
        Tensor
            Shape ``[rows, num_query_heads, head_dim]``.

        """


@dataclass(frozen=True)
class Selection:
    """What was chosen after a verification.

    Attributes
    ----------
    counts : list of int
        Entries of its prefix that each request's draft steps read, per KV head of a layer with full attention.
    positions : Tensor or None
        The policy's answer (`Policy.select`), one set for every layer; None where it leaves nothing out, or chooses
        elsewhere.

    """

    counts: list[int]
    positions: Tensor | None


class Backend(Attending):
    """Attention and selection of one run: ``begin`` a pass, let the model ``attend``, and after a verification
    ``select``.

    Parameters
    ----------
    cache : KVCache
        Of this run.
    config : VegasConfig
        Policy, budget and draft length.

    Attributes
    ----------
    clock : Clock
        Of the cost of selecting: scores, choice, and a policy's upkeep.

    """

    def __init__(self, cache: KVCache, config: VegasConfig) -> None:
        self.cache, self.config = cache, config
        self.device = cache.keys[0].device
        self.policy = make_policy(config)
        """Of this run alone: it may remember requests by their slots."""
        self.layers = [cache.layers[index] for index in cache.full_layers]
        """Those with full attention."""
        self.clock = Clock(self.device)
        self.kind: Kind = "prompt"
        self.batch: Sequence[RowSpan] = ()
        self.budgets: Sequence[int] = ()
        self._masks: dict[tuple[int, int | None], CausalMask] = {}
        """Of the present pass, by place in the batch and window: layers that share one build it once."""
        self._queries: dict[int, Queries] = {}
        """Of the verified rows in the last layer with full attention, by place in the batch."""
        self._observed: dict[int, int] = {}
        """Positions whose keys the policy has seen, by slot."""
        slots = cache.keys[0].shape[0]
        self.policy.reserve(
            Room(
                layers=[(layer.num_kv_heads, layer.head_dim) for layer in self.layers],
                num_pages=slots * cache.length // PAGE_SIZE,
                max_requests=slots,
                most_entries=config.budget(cache.length),
                dtype=torch.float32,  # to convert at each step costs more than the products that it is for
                device=self.device,
            )
        )

    def begin(self, kind: Kind, batch: Sequence[RowSpan], budgets: Sequence[int] = ()) -> Backend:
        """Begin a forward pass over these rows; give what the model is to call.

        Parameters
        ----------
        kind : {"prompt", "verify", "draft"}
            A draft has one row per request, all of them verified before.
        batch : sequence of RowSpan
            The requests' rows, packed in this order.
        budgets : sequence of int
            For a verification: entries of its prefix that each request's next draft may read.

        """
        self.kind, self.batch = kind, batch
        self._masks.clear()
        if kind == "verify":
            self.budgets = budgets
            self._queries.clear()
        self._begin()
        return self

    @abstractmethod
    def _begin(self) -> None:
        """Set up the pass that was begun."""

    @abstractmethod
    def select(self, num_accepted: Sequence[int], committed: Sequence[int]) -> Selection:
        """Choose what the next draft reads, for the requests of the latest verification.

        Parameters
        ----------
        num_accepted : sequence of int
            Drafts accepted of each request.
        committed : sequence of int
            Tokens of each request that are in the cache and exact; 0 if it has ended.

        """

    def release(self, slot: int) -> None:
        """Forget the request of a slot, which has ended."""
        self.policy.release(slot)
        self._observed.pop(slot, None)

    def _attend_to_all(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor, CausalMask]]]:
        """RowSpan that read the whole cache, or their window of it, in plain torch: prompts, and `TorchBackend`'s
        verifications.

        Their exact keys and values are written over the approximate ones that drafting may have left. Gives each
        request's queries, keys and mask, too.
        """
        out, seen, first = [], [], 0
        for place, rows in enumerate(self.batch):
            own = slice(first, first + rows.count)
            first += rows.count
            self.cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
            begin = 0 if params.sliding_window is None else max(0, rows.start + 1 - params.sliding_window)
            keys, values = self.cache.read(layer, rows.slot, begin, rows.stop)
            if (place, params.sliding_window) not in self._masks:
                mask = CausalMask(rows, begin, params.sliding_window, query.device)
                self._masks[place, params.sliding_window] = mask
            mask = self._masks[place, params.sliding_window]
            out.append(attend(query[:, own], keys, values, mask, params))
            seen.append((query[:, own], keys, mask))
        return torch.cat(out), seen

    def _keep_queries(self, layer: int, place: int, query: Tensor, params: AttentionParams) -> None:
        if self.policy.keeps_queries and layer == self.layers[-1].index:
            self._queries[place] = Queries(query, params.scale, params.sinks)

    def _ask(self, num_accepted: Sequence[int], scores: Tensor | None) -> Selection:
        """Ask the policy, one set for every layer with full attention."""
        prefix_lens = [rows.start + 1 for rows in self.batch]
        exact = [self.policy.num_entries(*each) for each in zip(prefix_lens, self.budgets, strict=True)]
        if not (self.layers and self.policy.selects):
            return Selection(exact, None)
        slots = [rows.slot for rows in self.batch]
        keys = [DenseKeys(self.cache.keys[layer.index], slots) for layer in self.layers]
        seen = [prefix + accepted for prefix, accepted in zip(prefix_lens, num_accepted, strict=True)]
        verified = Verified(
            slots=slots,
            slot_index=self._longs(slots),
            prefix_lens=self._longs(prefix_lens),
            budgets=self._longs(self.budgets),
            width=max(map(self.policy.most_entries, self.budgets)),
            keys=keys,
            scores=scores,
            queries=self._last_rows(num_accepted),
            seen=self._longs(seen),
            most_seen=seen,
        )
        with self.clock:
            self._observe(slots, prefix_lens, keys)
            if self.policy.per_step:
                return Selection(exact, None)
            chosen = self.policy.select(verified)
        if chosen is None:
            return Selection(prefix_lens, None)
        counts = (chosen[0, :, 0] >= 0).sum(-1).tolist()
        return Selection(counts, chosen.expand(len(self.layers), -1, -1, -1))

    def _last_rows(self, num_accepted: Sequence[int]) -> Queries | None:
        if not self._queries:
            return None
        rows = [self._queries[place].query[:, accepted] for place, accepted in enumerate(num_accepted)]
        return Queries(torch.stack(rows, dim=1), self._queries[0].scale, self._queries[0].sinks)

    def _observe(self, slots: Sequence[int], prefix_lens: Sequence[int], keys: Sequence[DenseKeys]) -> None:
        """Show the policy the keys that have become final, each once."""
        if type(self.policy).observe is Policy.observe:
            return
        for slot, prefix_len in zip(slots, prefix_lens, strict=True):
            first = self._observed.get(slot, 0)
            self._observed[slot] = prefix_len
            places = slot * self.cache.length + torch.arange(first, prefix_len, device=self.device)
            for layer, view in enumerate(keys):
                self.policy.observe(layer, view, places)

    def _longs(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
