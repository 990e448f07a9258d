"""Policy ``specextend`` in a paged cache: at every 8th iteration one row names the chunks that all layers draft over.

The ranking is `vegas_spec.policies.specextend`'s. It wants the last accepted row, which only the speculator knows, so
verification keeps its queries in the last layer, and the retrieval is a pass of its own before the draft, in plain
torch. What was retrieved is kept by the engine's request slot. Which requests are due is known to the host without
asking the device: those whose prompt has just been read (a new request's, or that of one which was preempted), those
that were served 8 times, and those that decoded plainly since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies.specextend import CHUNK_SIZE, REFRESH_INTERVAL, best_chunks, chunk_scores, most_recent
from vegas_spec.selection import query_key_logits
from vegas_spec.vllm.worker.draft_kv import DraftKV, LayerDraftKV, Likeness, ScoredRows, slots_of

KEYS_AT_ONCE = 16384
"""Keys that are copied out of the cache at once to be scored."""


@dataclass(frozen=True)
class Accepted:
    """What a retrieval needs to know of a step.

    Attributes
    ----------
    requests : Tensor
        Slot of each request, int64, shape ``[batch]``.
    rows : Tensor
        Its last accepted row among the step's tokens, int64, shape ``[batch]``.
    lengths : Tensor
        The keys that this row sees, int32, shape ``[batch]``.
    due : list of tuple
        Of each request that is due: its place in the batch, its slot, and at most how many keys its row sees.

    """

    requests: Tensor
    rows: Tensor
    lengths: Tensor
    due: list[tuple[int, int, int]]


class SpecExtendKV(DraftKV):
    """The chunks of every request slot, and one list of cache slots per block table, which all its layers read.

    See `DraftKV` for the other parameters.

    Parameters
    ----------
    dtype : torch.dtype
        Of the queries.
    max_tokens : int
        Most tokens of a step.
    over_ranks : callable
        Sums a tensor over the ranks of tensor parallelism, which have some of the heads each.

    """

    def __init__(
        self,
        config: VegasConfig,
        *,
        num_layers: int,
        dtype: torch.dtype,
        max_tokens: int,
        over_ranks: Callable[[Tensor], Tensor],
        **options: Any,
    ) -> None:
        options |= {"num_layers": 1, "score_capacity": 0}
        super().__init__(dataclasses.replace(config, granularity="layer"), **options)
        self.last = num_layers - 1
        self.over_ranks = over_ranks
        _, requests, _, width = self.slots.shape
        # What came since the last whole chunk is read on top of the budget.
        self.slots = self.slots.new_zeros((1, requests, 1, width + most_recent(config)))
        self.column = torch.arange(self.slots.shape[-1], device=self.slots.device)
        self.part_of = [0] * num_layers
        """Which of the lists a layer reads."""
        self.queries = self.slots.new_zeros((max_tokens, options["num_heads"], options["head_dim"]), dtype=dtype)
        """The latest step's, in the last layer; where they are, a CUDA graph of verifications puts them too."""
        self.keys: Tensor | None = None
        self.like: Likeness | None = None
        self.chunks = self.slots.new_zeros((requests, max(self.most // CHUNK_SIZE, 1)))
        """Numbers of the chunks that a request reads, ascending."""
        self.in_chunks, self.recent_from = self.slots.new_zeros((2, requests))
        """How many entries that are, and from which position on everything is read."""
        self.served = np.full(requests, REFRESH_INTERVAL)
        """Iterations that the chunks of each slot have served."""
        self.step: Accepted | None = None

    def of_layer(self, layer: int) -> LayerSpecExtendKV:
        """The share of one full-attention layer."""
        return LayerSpecExtendKV(self, layer)

    def divide(self, parts: Sequence[tuple[int, ...]]) -> None:
        """Have a list for each block table, and let go of the cache that the memory profile was taken with."""
        self.keys = self.like = None
        if len(parts) > len(self.slots):
            self.slots = self.slots.new_zeros((len(parts), *self.slots.shape[1:]))
        for part, layers in enumerate(parts):
            for layer in layers:
                self.part_of[layer] = part

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        kept = (self.queries, self.chunks, self.in_chunks, self.recent_from)
        return super().num_bytes + sum(tensor.nbytes for tensor in kept)

    def keep(self, query: Tensor, keys: Tensor, like: Likeness) -> None:
        """Keep the queries of a step in the last layer, and remember where its keys are."""
        self.queries[: len(query)] = query
        self.keys, self.like = keys, like

    def accepted(self, batch: Any, num_rejected: Tensor, drafting: bool) -> None:
        """See `DraftKV.accepted`; settles which requests are due."""
        n, slots = batch.num_reqs, batch.idx_mapping_np
        if not drafting:
            # More than a list has room for may come until the next draft.
            self.served[slots] = REFRESH_INTERVAL
            self.step = None
            return
        reading = batch.is_prefilling_np[:n]
        read = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
        unfinished = reading & (read < batch.prefill_len_np)
        self.served[slots[reading]] = REFRESH_INTERVAL
        due = (self.served[slots] == REFRESH_INTERVAL) & ~unfinished
        self.served[slots[due]] = 0
        self.served[slots] += 1
        places = np.flatnonzero(due)
        most = batch.seq_lens_cpu_upper_bound[:n].numpy()[places]
        self.step = Accepted(
            requests=batch.idx_mapping[:n],
            rows=batch.query_start_loc[1 : n + 1].long() - 1 - num_rejected[:n],
            lengths=batch.seq_lens[:n] - num_rejected[:n],
            due=list(zip(places.tolist(), slots[places].tolist(), most.tolist(), strict=True)),
        )

    def choose_unscored(self) -> None:
        """Before a draft: retrieve for the requests that are due, then list what each request reads."""
        step, self.step = self.step, None
        for rows, _ in self.unscored.values():
            self.lay_out(rows)
        if step is not None:
            queries = self.queries[step.rows]
            [blocks] = [rows.block_table for layers, (rows, _) in self.unscored.items() if self.last in layers]
            for place, request, most in step.due:
                self.retrieve(place, request, queries[place], step.lengths[place : place + 1], blocks[place], most)
            for layers, (rows, block_size) in self.unscored.items():
                self.list_slots(self.part_of[layers[0]], step.requests, rows, block_size)
        self.unscored.clear()

    def retrieve(self, place: int, request: int, query: Tensor, length: Tensor, blocks: Tensor, most: int) -> None:
        """Rank the chunks of one request's prefix, and keep the best.

        Parameters
        ----------
        place, request : int
            In the batch, and its slot.
        query : Tensor
            Of the last accepted row, shape ``[num_heads, head_dim]``.
        length : Tensor
            Keys that the row sees, int32, shape ``[1]``.
        blocks : Tensor
            The request's block table, int32, one-dimensional.
        most : int
            What the host knows of the length: at most so much.

        """
        assert self.keys is not None
        assert self.like is not None
        block_size = self.keys.shape[1]
        most = min(most, len(blocks) * block_size)
        parts = []
        for some in torch.split(blocks[: -(-most // block_size)].long(), max(KEYS_AT_ONCE // block_size, 1)):
            keys = self.keys[some].flatten(0, 1).transpose(0, 1).to(query.dtype)
            parts.append(query_key_logits(query[:, None], keys, self.like.scale))
        logits = torch.cat(parts, dim=-1)[..., :most]
        if self.like.key_scale is not None:
            logits = logits * self.like.key_scale.to(logits.dtype)
        hidden = torch.arange(most, device=length.device) >= length
        scores = self.over_ranks(chunk_scores(logits.masked_fill(hidden, -torch.inf), self.like.sinks))
        prefix = self.plan.prefix_lens[place : place + 1]
        chunks = prefix // CHUNK_SIZE
        wanted = self.config.budget(prefix).clamp(max=self.most) // CHUNK_SIZE
        best = best_chunks(scores, chunks, wanted)[: self.chunks.shape[1]]
        self.chunks[request, : len(best)] = best.to(torch.int32)
        self.in_chunks[request : request + 1] = wanted * CHUNK_SIZE
        self.recent_from[request : request + 1] = chunks * CHUNK_SIZE

    def list_slots(self, part: int, requests: Tensor, rows: ScoredRows, block_size: int) -> None:
        """List the slots of every request's chunks, and of all that came since the last whole one."""
        n = len(requests)
        in_chunks, recent_from = (each[requests, None].long() for each in (self.in_chunks, self.recent_from))
        # A request in the middle of its prompt, whose draft is thrown away, has chunks of the slot's last one.
        entries = in_chunks[:, 0] + self.plan.prefix_lens[:n] - recent_from[:, 0]
        self.counts[:n] = entries.clamp(0, self.slots.shape[-1] - self.tail)
        number = (self.column // CHUNK_SIZE).clamp(max=self.chunks.shape[1] - 1)
        in_chunk = self.chunks[requests][:, number].long() * CHUNK_SIZE + self.column % CHUNK_SIZE
        position = torch.where(self.column < in_chunks, in_chunk, recent_from + self.column - in_chunks)
        self.slots[part, :n, 0] = slots_of(position, rows.block_table[:n], block_size)


@dataclass(frozen=True)
class LayerSpecExtendKV(LayerDraftKV):
    """One full-attention layer's share of `SpecExtendKV`."""

    owner: SpecExtendKV

    def verified(self, query: Tensor, key_cache: Tensor, slot_mapping: Tensor, like: Likeness) -> None:
        """See `LayerDraftKV.verified`."""
        if self.layer == self.owner.last:
            self.owner.keep(query, key_cache, like)

    def chosen(self, query: Tensor, block_table: Tensor, block_size: int) -> Tensor:
        """See `LayerDraftKV.chosen`."""
        return self.owner.slots[self.owner.part_of[self.layer], : len(query)]
