"""SpecExtend's cross-model retrieval, drafting for itself: now and then one row names the chunks for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Policy, Queries, Verified
from vegas_spec.selection import NO_POSITION, query_key_logits, score_rows

CHUNK_SIZE = 32
REFRESH_INTERVAL = 8
"""Iterations that one retrieval serves."""


def most_recent(config: VegasConfig) -> int:
    """Most entries that are read on top of the budget: since the last whole chunk, until the next retrieval."""
    return CHUNK_SIZE - 1 + REFRESH_INTERVAL * (config.num_speculative_tokens + 1)


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


def best_chunks(scores: Tensor, chunks: int | Tensor, wanted: int | Tensor) -> Tensor:
    """Give the ``wanted`` best of the first ``chunks`` chunks, ascending; waits for nothing on the device.

    Ties go to the later chunk; a NaN comes last.

    Parameters
    ----------
    scores : Tensor
        Not negative, shape ``[n]``.
    chunks, wanted : int or Tensor
        ``wanted <= chunks <= n``; tensors of one integer.

    Returns
    -------
    Tensor
        Int64, shape ``[n]``: numbers of chunks, then ``n`` from place ``wanted`` on.

    """
    number = torch.arange(len(scores), device=scores.device)
    scores = torch.where(scores.isnan(), -1.0, scores).masked_fill(number >= chunks, -torch.inf)
    ranked = len(scores) - 1 - scores.flip(0).argsort(descending=True, stable=True)
    return torch.where(number < wanted, ranked, len(scores)).sort().values


@dataclass
class _Retrieval:
    """What was chosen for one request: positions of chunks, ascending, int64, and how many iterations it has served."""

    positions: Tensor
    recent_from: int
    """Everything from here on is read."""
    served: int = 0


class SpecExtendPolicy(Policy):
    """The chunks of 32 positions that the last accepted row attends to most, retrieved at every 8th iteration.

    A chunk is ranked by the mean, over its keys and over all query heads, of the softmax weights of the last accepted
    row in the last layer with full attention. The best ``budget // 32`` chunks serve all layers and heads until the
    next retrieval, together with everything after the last whole chunk. The scores are a pass of its own over the last
    layer's keys, after verification. SpecExtend (arXiv 2505.20776), with the target itself in place of the draft model.
    """

    name = "specextend"
    summary = "the chunks that the last layer ranks best at every 8th iteration"
    keeps_queries = True

    def __init__(self, config: VegasConfig) -> None:
        super().__init__(config)
        self._retrievals: dict[int, _Retrieval] = {}

    def num_entries(self, prefix_len: int) -> int:
        """Whole chunks up to the budget, and at most what came since the last of them until the next retrieval."""
        return min(self.config.budget(prefix_len) + most_recent(self.config), prefix_len)

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`."""
        if verified.queries is None:
            raise TypeError("the specextend policy scores by queries, and verification kept none")
        rows = []
        for place, (slot, prefix_len) in enumerate(zip(verified.slots, verified.prefix_lens, strict=True)):
            retrieval = self._retrievals.get(slot)
            if retrieval is None or retrieval.served == REFRESH_INTERVAL:
                row = verified.num_accepted[place]
                keys = verified.keys[-1][slot, :, : prefix_len + row]
                retrieval = self._retrieve(verified.queries[place], row, keys, prefix_len)
                self._retrievals[slot] = retrieval
            retrieval.served += 1
            recent = torch.arange(retrieval.recent_from, prefix_len, device=retrieval.positions.device)
            rows.append(torch.cat([retrieval.positions, recent]))
        return pad_sequence(rows, batch_first=True, padding_value=NO_POSITION)[None, :, None]

    def _retrieve(self, queries: Queries, row: int, keys: Tensor, prefix_len: int) -> _Retrieval:
        chunks, wanted = prefix_len // CHUNK_SIZE, self.config.budget(prefix_len) // CHUNK_SIZE
        logits = query_key_logits(queries.query[:, row : row + 1], keys, queries.scale)
        best = best_chunks(chunk_scores(logits, queries.sinks), chunks, wanted)[:wanted]
        positions = best[:, None] * CHUNK_SIZE + torch.arange(CHUNK_SIZE, device=keys.device)
        return _Retrieval(positions.flatten(), chunks * CHUNK_SIZE)

    def release(self, slot: int) -> None:
        """See `Policy.release`."""
        self._retrievals.pop(slot, None)
