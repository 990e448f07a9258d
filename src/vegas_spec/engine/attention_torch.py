"""The backend in plain torch, on any device and in any dtype: the definition at work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import AttentionParams, CausalMask, RowSpan, attend
from vegas_spec.engine.backend import Backend, Selection
from vegas_spec.engine.kv_cache import DraftCache, KVCache
from vegas_spec.engine.observer import Observer
from vegas_spec.policies import Drafting, Queries, ScoreRequest
from vegas_spec.policies.keys import DenseKeys
from vegas_spec.selection import query_key_logits, score_rows


class ScoreBuffer:
    """Scores of all full-attention layers, kept from a verification to the selection that follows it.

    Shape ``[layers, batch, groups, keys]`` float32; with ``rows="last"`` one such tensor per row, since which row is
    the last accepted one is known only after verification. Allocated for the tokens in flight: ``4 * groups`` bytes
    per token and layer, one or two hundredths of what their keys and values take.
    """

    def __init__(self, request: ScoreRequest, cache: KVCache, batch: Sequence[RowSpan]) -> None:
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
        """Score the prefix, which ends at the request's first row.

        ``place`` is the request's in the batch; shapes as in `attend`, with all keys from position 0 on.
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


class TorchBackend(Backend):
    """One request after another, as the definitions are written.

    Parameters
    ----------
    cache, config
        See `Backend`.

    Attributes
    ----------
    observer : Observer or None
        Looks at the run.

    """

    def __init__(self, cache: KVCache, config: VegasConfig) -> None:
        super().__init__(cache, config)
        self.observer: Observer | None = None
        self._drafts: dict[int, DraftCache] = {}
        """By slot, what requests draft over, if their entries were chosen after the verification."""
        self._prefix_lens: dict[int, int] = {}
        self._budgets: dict[int, int] = {}
        self._scores: ScoreBuffer | None = None

    def _begin(self) -> None:
        if self.kind == "verify":
            wanted = self.policy.score_request
            self._scores = ScoreBuffer(wanted, self.cache, self.batch) if wanted and self.layers else None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Attending.attend`."""
        if self.kind == "prompt":
            return self._attend_to_all(layer, query, key, value, params)[0]
        if self.kind == "verify":
            return self._verify(layer, query, key, value, params)
        if params.sliding_window is None and self.policy.per_step:
            return self._draft_by_step(layer, query, key, value, params)
        return self._draft(layer, query, key, value, params)

    def select(self, num_accepted: Sequence[int], committed: Sequence[int]) -> Selection:
        """See `Backend.select`; copies the chosen entries, once for all steps of the draft."""
        scores = None if self._scores is None else self._scores.of(num_accepted)
        found = self._ask(num_accepted, scores)
        for place, (rows, count, stop) in enumerate(zip(self.batch, found.counts, committed, strict=True)):
            prefix_len = rows.start + 1
            self._prefix_lens[rows.slot], self._budgets[rows.slot] = prefix_len, self.budgets[place]
            if found.positions is None or not stop:
                continue
            if rows.slot not in self._drafts:
                most = self.policy.most_entries(self.config.budget(self.cache.length))
                width = most + self.config.tail
                self._drafts[rows.slot] = DraftCache(self.cache, rows.slot, width)
            for index, layer in enumerate(self.layers):
                positions = found.positions[index, place, : layer.num_kv_heads, :count]
                self._drafts[rows.slot].gather(layer.index, positions, prefix_len, stop)
        return found

    def release(self, slot: int) -> None:
        """See `Backend.release`."""
        super().release(slot)
        self._drafts.pop(slot, None)

    def _verify(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Attend to all, and score the prefix on the way."""
        out, seen = self._attend_to_all(layer, query, key, value, params)
        if params.sliding_window is not None:
            return out
        if self._scores is not None:
            with self.clock:
                for place, (queries, keys, mask) in enumerate(seen):
                    self._scores.collect(layer, place, queries, keys, mask, params)
        for place, (rows, (queries, keys, _)) in enumerate(zip(self.batch, seen, strict=True)):
            self._keep_queries(layer, place, queries, params)
            if self.observer is not None:
                self.observer.verified(layer, rows, Queries(queries, params.scale, params.sinks), keys)
        return out

    def _draft(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """One row per request that reads what was selected and what came since; sliding layers read their window."""
        out = []
        for place, rows in enumerate(self.batch):
            own = slice(place, place + 1)
            selected = self._drafts.get(rows.slot) if params.sliding_window is None else None
            if selected is not None:
                selected.append(layer, key[:, own], value[:, own])
                keys, values = selected.read(layer)
            else:
                self.cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
                begin = 0 if params.sliding_window is None else max(0, rows.stop - params.sliding_window)
                keys, values = self.cache.read(layer, rows.slot, begin, rows.stop)
            out.append(attend(query[:, own], keys, values, None, params))
            if self.observer is not None and params.sliding_window is None:
                self.observer.drafted(layer, rows, Queries(query[:, own], params.scale, params.sinks), keys)
        return torch.cat(out)

    def _draft_by_step(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """One row per request, of a policy that selects by the row's own query.

        The rows' keys and values go into the cache, past the committed tokens, until the verification writes over them.
        """
        for place, rows in enumerate(self.batch):
            own = slice(place, place + 1)
            self.cache.write(layer, rows.slot, rows.start, key[:, own], value[:, own])
        slots = [rows.slot for rows in self.batch]
        prefix_lens, budgets = ([kept[slot] for slot in slots] for kept in (self._prefix_lens, self._budgets))
        counts = [self.policy.num_entries(*each) for each in zip(prefix_lens, budgets, strict=True)]
        drafting = Drafting(
            prefix_lens=self._longs(prefix_lens),
            budgets=self._longs(budgets),
            seq_lens=self._longs([rows.stop for rows in self.batch]),
            width=max(counts),
            queries=Queries(query, params.scale, params.sinks),
            keys=DenseKeys(self.cache.keys[layer], slots),
        )
        with self.clock:
            chosen = self.policy.select_step(self.cache.full_layers[layer], drafting)
        out = []
        for place, (rows, prefix_len, count) in enumerate(zip(self.batch, prefix_lens, counts, strict=True)):
            positions = chosen[place, :, :count]
            keys, values = self.cache.gather(layer, rows.slot, positions, prefix_len, rows.stop)
            row = query[:, place : place + 1]
            out.append(attend(row, keys, values, None, params))
            if self.observer is not None:
                self.observer.drafted(layer, rows, Queries(row, params.scale, params.sinks), keys, positions)
        return torch.cat(out)
