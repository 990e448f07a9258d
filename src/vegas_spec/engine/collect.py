"""What a verification keeps for the selection that follows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.engine.attention import AttentionParams, CausalMask, Rows
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.policies import Queries, ScoreRequest
from vegas_spec.selection import query_key_logits, score_rows


class Collector(ABC):
    """Looks at a verification as it runs, layer by layer; at layers with full attention alone."""

    @abstractmethod
    def collect(
        self, layer: int, place: int, query: Tensor, key: Tensor, mask: CausalMask, params: AttentionParams
    ) -> None:
        """Look at the request at `place` of the batch.

        Shapes as in `vegas_spec.engine.attention.attend`, with all keys from position 0 on.
        """


class ScoreBuffer(Collector):
    """Scores of all full-attention layers, kept from a verification to the selection that follows it.

    Shape ``[layers, batch, groups, keys]`` float32; with ``rows="last"`` one such tensor per row, since which row is
    the last accepted one is known only after verification. Allocated for the tokens in flight: ``4 * groups`` bytes
    per token and layer, one or two hundredths of what their keys and values take.
    """

    def __init__(self, request: ScoreRequest, cache: KVCache, batch: Sequence[Rows]) -> None:
        self.request = request
        self._index = cache.full_layers
        groups = max(layer.num_kv_heads for layer in cache.layers) if request.granularity == "kv_head" else 1
        keys = max(rows.start + 1 for rows in batch)
        depth = max(rows.count for rows in batch) if request.rows == "last" else 1
        self._scores = torch.zeros(
            depth, len(self._index), len(batch), groups, keys, dtype=torch.float32, device=cache.keys[0].device
        )

    def collect(
        self, layer: int, place: int, query: Tensor, key: Tensor, mask: CausalMask, params: AttentionParams
    ) -> None:
        """Score the prefix, which ends at the request's first row."""
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


class QueryBuffer(Collector):
    """The verified rows' queries in the last layer with full attention."""

    def __init__(self, cache: KVCache) -> None:
        self._layer = list(cache.full_layers)[-1]
        self._queries: dict[int, Queries] = {}

    def collect(
        self, layer: int, place: int, query: Tensor, key: Tensor, mask: CausalMask, params: AttentionParams
    ) -> None:
        """See `Collector.collect`."""
        self.keep(layer, place, query, params)

    def keep(self, layer: int, place: int, query: Tensor, params: AttentionParams) -> None:
        """Keep the queries of a request, if this is the layer."""
        if layer == self._layer:
            self._queries[place] = Queries(query, params.scale, params.sinks)

    def all(self) -> list[Queries]:
        """Give every request's, in the order of the batch."""
        return [self._queries[place] for place in range(len(self._queries))]
