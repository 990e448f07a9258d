"""SpecExtend's cross-model retrieval, drafting for itself: now and then one row names the chunks for all layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Policy, Room, Verified
from vegas_spec.selection import NO_POSITION, query_key_logits, rank_positions, score_rows

CHUNK_SIZE = 32
"""Tokens that are chosen together. Chosen by hand, as is the next one."""

REFRESH_INTERVAL = 8
"""Iterations that one retrieval serves."""


def chunk_scores(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Score whole chunks by one row: its softmax weights (`score_rows`), summed over heads and a chunk's keys.

    A mean over heads and keys ranks as the sum does: chunks are of one size.

    Parameters
    ----------
    logits : Tensor
        Scaled query-key products, ``-inf`` for keys that the row may not see, shape ``[1, num_query_heads, keys]``.
    sinks : Tensor or None
        A logit per query head that takes weight but has no key.

    Returns
    -------
    Tensor
        Float32 (float64 for float64 logits), shape ``[keys // 32]``.

    """
    chunks = logits.shape[-1] // CHUNK_SIZE
    weights = score_rows(logits, None, 1, "weight", "layer", sinks)[0]
    return weights[: chunks * CHUNK_SIZE].view(chunks, CHUNK_SIZE).sum(-1)


class SpecExtendPolicy(Policy):
    """The chunks of 32 positions that the last accepted row attends to most, retrieved at every 8th iteration.

    A chunk is ranked by the mean, over its keys and over all query heads, of the softmax weights of the last accepted
    row in the last layer with full attention. The best ``budget // 32`` chunks serve all layers and heads until the
    next retrieval, together with everything after the last whole chunk. The scores are a pass of its own over the last
    layer's keys, after verification. SpecExtend (arXiv 2505.20776), with the target itself in place of the draft model.

    Which requests are due is known on the host: those that it has not seen, and those that were served 8 times.
    """

    name = "specextend"
    summary = "the chunks that the last layer ranks best at every 8th iteration"
    keeps_queries = True
    sets: Literal["model"] = "model"

    def __init__(self, config: VegasConfig) -> None:
        super().__init__(config)
        self._served: dict[int, int] = {}
        """By slot, iterations that its chunks have served."""
        self._over_ranks = Room.over_ranks

    def most_entries(self, budget: int) -> int:
        """Whole chunks up to the budget, and what comes after the last whole one until the next retrieval."""
        return budget + CHUNK_SIZE - 1 + REFRESH_INTERVAL * (self.config.num_speculative_tokens + 1)

    def reserve(self, room: Room) -> None:
        """See `Policy.reserve`."""
        self._over_ranks = room.over_ranks
        chunks = max(room.most_entries // CHUNK_SIZE, 1)
        self.chunks = torch.zeros(room.max_requests, chunks, dtype=torch.int64, device=room.device)
        """Numbers of the chunks that a request reads, ascending."""
        self.in_chunks, self.recent_from = self.chunks.new_zeros(2, room.max_requests)
        """How many entries that are, and from which position on everything is read."""
        self._served.clear()

    @property
    def num_bytes(self) -> int:
        """See `Policy.num_bytes`."""
        return int(self.chunks.nbytes + 2 * self.in_chunks.nbytes)

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`."""
        if verified.queries is None:
            raise TypeError("the specextend policy scores by queries, and verification kept none")
        for place, slot in enumerate(verified.slots):
            if slot < 0:
                continue
            if self._served.get(slot, REFRESH_INTERVAL) == REFRESH_INTERVAL:
                self._retrieve(place, slot, verified)
                self._served[slot] = 0
            self._served[slot] += 1
        slots = verified.slot_index
        in_chunks, recent_from = self.in_chunks[slots, None], self.recent_from[slots, None]
        column = torch.arange(verified.width, device=self.chunks.device)
        number = (column // CHUNK_SIZE).clamp(max=self.chunks.shape[1] - 1)
        in_chunk = self.chunks[slots][:, number] * CHUNK_SIZE + column % CHUNK_SIZE
        positions = torch.where(column < in_chunks, in_chunk, recent_from + column - in_chunks)
        entries = in_chunks + verified.prefix_lens[:, None] - recent_from
        return positions.masked_fill(column >= entries, NO_POSITION)[None, :, None]

    def _retrieve(self, place: int, slot: int, verified: Verified) -> None:
        """Rank the chunks of one request's prefix, and keep the best; ties go to the later chunk."""
        queries, seen = verified.queries, verified.seen
        assert queries is not None
        assert seen is not None
        query, most = queries.query[:, place : place + 1], verified.most_seen[place]
        pieces = [query_key_logits(query, keys, queries.scale) for keys in verified.keys[-1].read(place, most)]
        logits = torch.cat(pieces, dim=-1)
        hidden = torch.arange(logits.shape[-1], device=logits.device) >= seen[place]
        scores = self._over_ranks(chunk_scores(logits.masked_fill(hidden, -torch.inf), queries.sinks))
        chunks = verified.prefix_lens[place : place + 1] // CHUNK_SIZE
        wanted = (verified.budgets[place : place + 1] // CHUNK_SIZE).minimum(chunks)
        best = rank_positions(scores[None, None], chunks, wanted, self.chunks.shape[1])[0, 0]
        self.chunks[slot] = best
        self.in_chunks[slot : slot + 1] = wanted * CHUNK_SIZE
        self.recent_from[slot : slot + 1] = chunks * CHUNK_SIZE

    def release(self, slot: int) -> None:
        """See `Policy.release`."""
        self._served.pop(slot, None)
