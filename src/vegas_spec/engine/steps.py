"""What attention does in one forward pass: reading a prompt, verifying drafts, or drafting.

A step travels from the engine to every attention layer as a keyword argument of the model's forward pass. It is handed
the layer's queries, keys and values of a packed batch (all requests' rows one after the other, no padding).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.engine.attention import AttentionParams, CausalMask, Rows, attend, query_key_logits
from vegas_spec.engine.kv_cache import DraftCache, KVCache
from vegas_spec.policies import ScoreRequest
from vegas_spec.selection import score_rows


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


class ScoreBuffer:
    """Scores of all full-attention layers, kept from a verification to the selection that follows it.

    Shape ``[layers, batch, groups, keys]`` float32; with ``rows="last"`` one such tensor per row, since which row is
    the last accepted one is known only after verification. Allocated for the tokens in flight: ``4 * groups`` bytes
    per token and layer, one or two hundredths of what their keys and values take.
    """

    def __init__(self, request: ScoreRequest, cache: KVCache, batch: Sequence[Rows]) -> None:
        self.request = request
        self._index = {
            layer.index: place for place, layer in enumerate(x for x in cache.layers if x.sliding_window is None)
        }
        groups = max(layer.num_kv_heads for layer in cache.layers) if request.granularity == "kv_head" else 1
        keys = max(rows.start + 1 for rows in batch)
        depth = max(rows.count for rows in batch) if request.rows == "last" else 1
        self._scores = torch.zeros(
            depth, len(self._index), len(batch), groups, keys, dtype=torch.float32, device=cache.keys[0].device
        )

    def collect(
        self, layer: int, place: int, query: Tensor, key: Tensor, mask: CausalMask, params: AttentionParams
    ) -> None:
        """Score the keys of the request at `place` of the batch: the prefix ends at its first row.

        Shapes as in `vegas_spec.engine.attention.attend`, with all keys from position 0 on.
        """
        rows, keys = mask.shape
        prefix = keys - rows + 1
        group = query.shape[0] // key.shape[0]
        for depth, chosen in enumerate(self._row_sets(rows)):
            hidden = ~mask.visible[chosen, prefix:]
            into = self._scores[depth, self._index[layer], place]
            # One KV head at a time: its logits stay in the processor's cache until they are summed.
            for head in range(key.shape[0]):
                own = slice(head * group, (head + 1) * group)
                logits = query_key_logits(query[own, chosen], key[head : head + 1], params.scale)
                # Every row sees the whole prefix; only what came since is hidden from the earlier rows.
                logits[..., prefix:].masked_fill_(hidden[:, None], -torch.inf)
                sinks = None if params.sinks is None else params.sinks[own]
                scores = score_rows(logits, None, 1, self.request.score, "layer", sinks)
                into[min(head, into.shape[0] - 1), :prefix] += scores[0, :prefix]

    def _row_sets(self, count: int) -> list[list[int]]:
        match self.request.rows:
            case "ends":
                return [[0, count - 1] if count > 1 else [0]]
            case "all":
                return [list(range(count))]
            case _:
                return [[row] for row in range(count)]

    def of(self, num_accepted: Sequence[int]) -> Tensor:
        """Give the scores, shape ``[layers, batch, groups, keys]``, now that acceptance is known."""
        if self.request.rows != "last":
            return self._scores[0]
        return torch.stack([self._scores[row, :, place] for place, row in enumerate(num_accepted)], dim=1)


class FullStep(Step):
    """Rows that read the whole cache: a piece of a prompt, or a verification.

    Writes the rows' exact keys and values, over the approximate ones that drafting may have left.
    """

    def __init__(self, cache: KVCache, batch: Sequence[Rows], scores: ScoreBuffer | None = None) -> None:
        self._cache = cache
        self._batch = batch
        self._scores = scores
        self._masks: dict[tuple[int, int | None], CausalMask] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Step.attend`."""
        out, first = [], 0
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
            if self._scores is not None and params.sliding_window is None:
                self._scores.collect(layer, place, query[:, own], keys, mask, params)
        return torch.cat(out)


class DraftStep(Step):
    """One row per request that reads only what was selected and what came since; sliding layers read their window."""

    def __init__(self, cache: KVCache, batch: Sequence[Rows], drafts: Sequence[DraftCache | None]) -> None:
        self._cache = cache
        self._batch = batch
        self._drafts = drafts

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
        return torch.cat(out)
