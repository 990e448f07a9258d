"""Fills a `SelectionTrace` while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from vegas_bench.inspect.trace import IterationTrace, TraceSummary, summarise
from vegas_spec.config import VegasConfig, check_int
from vegas_spec.engine.attention import RowSpan
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.engine.request import Request
from vegas_spec.policies import Queries
from vegas_spec.selection import NO_POSITION, query_key_logits, score_rows, select_positions


@dataclass
class _Draft:
    """What is being noted between a selection and the verification of the draft over it; lists are by layer."""

    iteration: int
    prefix_len: int
    selected: list[Tensor] | None
    """What the policy selected once, per layer ``[num_kv_heads, k]``."""
    positions: list[list[Tensor]] = field(default_factory=list)
    recall: list[list[Tensor]] = field(default_factory=list)
    mass: list[list[Tensor]] = field(default_factory=list)
    oracle_mass: list[list[Tensor]] = field(default_factory=list)
    overlap: list[Tensor] = field(default_factory=list)


@dataclass
class SelectionTrace:
    """An observer of one or more runs; pass it to `vegas_spec.LLM.generate` or `vegas_spec.LLM.stream`.

    Parameters
    ----------
    positions : bool
        Keep the selected positions: ``4 * k`` bytes per iteration, layer and KV head, without bound over a long output.
        Without them an iteration takes a few kilobytes.
    every : int
        Look at each request's every so many-th iteration, beginning with the first.

    """

    positions: bool = True
    every: int = 1
    iterations: list[IterationTrace] = field(default_factory=list)
    """In the order in which their verifications ended."""

    def __post_init__(self) -> None:
        check_int("every", self.every, 1)

    def of(self, request_id: str) -> list[IterationTrace]:
        """Iterations of one request, in order."""
        return [trace for trace in self.iterations if trace.request_id == request_id]

    def summary(self) -> TraceSummary:
        """Means over all iterations; see `summarise`."""
        return summarise(self.iterations)

    def observer(self, cache: KVCache, config: VegasConfig) -> Recorder:
        """See `vegas_spec.engine.observer.Trace`."""
        return Recorder(self, cache, config)


class Recorder:
    """Notes, for one run, what `vegas_bench.inspect.trace.IterationTrace` describes.

    Where a model has no layer with full attention there is nothing to select, and nothing is noted.
    """

    def __init__(self, trace: SelectionTrace, cache: KVCache, config: VegasConfig) -> None:
        self._trace = trace
        self._cache = cache
        self._config = config
        self._iterations: dict[int, int] = {}
        self._drafts: dict[int, _Draft] = {}
        self._previous: dict[int, tuple[int, list[Tensor]]] = {}

    def selected(self, batch: Sequence[Request], num_accepted: Sequence[int], chosen: Tensor | None) -> None:
        """After a verification: close what it verified, and begin with what was chosen now.

        ``chosen`` is the answer of `Policy.select`, one set for every layer with full attention.
        """
        for place, request in enumerate(batch):
            slot = request.slot
            if slot in self._drafts:
                self._close(request, num_accepted[place])
            if request.output.finished or not self._cache.full_layers:
                self._iterations.pop(slot, None)
                self._previous.pop(slot, None)
                continue
            number = self._iterations[slot] = self._iterations.get(slot, -1) + 1
            if number % self._trace.every == 0:
                own = None if chosen is None else chosen[:, place, :, : request.num_selected]
                self._drafts[slot] = _Draft(number, request.prefix_len, None if own is None else self._by_layer(own))

    def drafted(
        self, layer: int, rows: RowSpan, queries: Queries, keys_read: Tensor, positions: Tensor | None = None
    ) -> None:
        """One layer of a draft step; the last of ``keys_read`` are those since the prefix.

        ``positions`` is what the step selected, shape ``[num_kv_heads or 1, k]``, if the policy selects at each step.
        """
        draft = self._drafts.get(rows.slot)
        if draft is None:
            return
        place = self._cache.full_layers[layer]
        if place == 0:
            for values in (draft.positions, draft.recall, draft.mass, draft.oracle_mass):
                values.append([])
        prefix_len, since = draft.prefix_len, keys_read.shape[1] - (rows.stop - draft.prefix_len)
        prefix_keys = self._cache.keys[layer][rows.slot, :, :prefix_len]
        logits = torch.cat(
            [query_key_logits(queries.query, keys, queries.scale) for keys in (prefix_keys, keys_read[:, since:])], -1
        )
        heads = prefix_keys.shape[0]
        weights = score_rows(logits, None, heads, "weight", "kv_head", queries.sinks)[:, :prefix_len]
        best = self._top_sets(weights[None])[0]
        total = weights.sum(1)
        draft.oracle_mass[-1].append(weights.gather(1, best).sum(1) / total)
        if positions is None and draft.selected is None:
            draft.recall[-1].append(torch.ones_like(total))
            draft.mass[-1].append(torch.ones_like(total))
            return
        if positions is None:
            positions = draft.selected[place]  # type: ignore[index]
        positions = positions.expand(heads, -1)
        draft.positions[-1].append(positions)
        draft.recall[-1].append(_share(best, positions, prefix_len))
        draft.mass[-1].append(weights.gather(1, positions).sum(1) / total)

    def verified(self, layer: int, rows: RowSpan, queries: Queries, keys: Tensor) -> None:
        """One layer of a verification of a request's rows; ``keys`` is all that its last row sees."""
        draft = self._drafts.get(rows.slot)
        if draft is None:
            return
        prefix_len = rows.start + 1
        hidden = torch.ones(rows.count, keys.shape[1], dtype=torch.bool, device=keys.device).triu(prefix_len)
        logits = query_key_logits(queries.query, keys, queries.scale).masked_fill(hidden[:, None], -torch.inf)
        weights = [score_rows(row[None], None, keys.shape[0], "weight", "kv_head", queries.sinks) for row in logits]
        best = self._top_sets(torch.stack([row[:, :prefix_len] for row in weights]))
        members = _members(best, prefix_len).float().transpose(0, 1)  # [kv_heads, rows, prefix]
        draft.overlap.append(members @ members.transpose(1, 2) / self._config.budget(prefix_len))

    def _close(self, request: Request, num_accepted: int) -> None:
        slot = request.slot
        draft = self._drafts.pop(slot)
        first = draft.selected or (draft.positions[0] if draft.positions and draft.positions[0] else None)
        kept = None
        if first is not None:
            number, previous = self._previous.get(slot, (-1, []))
            if previous and number == draft.iteration - 1:
                pairs = zip(first, previous, strict=True)
                kept = _stack([_share(now, before, draft.prefix_len) for now, before in pairs], math.nan).cpu()
            self._previous[slot] = draft.iteration, first
        positions = None
        if self._trace.positions and first is not None:
            steps = [draft.selected] if draft.selected is not None else draft.positions
            positions = _stack([_stack(step, NO_POSITION) for step in steps], NO_POSITION).int().cpu()
        layers, rows = tuple(self._cache.full_layers), draft.overlap[0].shape[-1]
        heads = max(self._cache.layers[layer].num_kv_heads for layer in layers)
        nothing = torch.empty(0, len(layers), heads)

        def by_step(values: list[list[Tensor]]) -> Tensor:
            return torch.stack([_stack(step, math.nan) for step in values]).cpu() if values else nothing

        self._trace.iterations.append(
            IterationTrace(
                request_id=request.output.request_id,
                iteration=draft.iteration,
                prefix_len=draft.prefix_len,
                top_k=self._config.budget(draft.prefix_len),
                drafted=rows - 1,
                accepted=num_accepted,
                layers=layers,
                positions=positions,
                recall=by_step(draft.recall),
                mass=by_step(draft.mass),
                oracle_mass=by_step(draft.oracle_mass),
                kept=kept,
                overlap=_stack(draft.overlap, math.nan).cpu(),
            )
        )

    def _by_layer(self, chosen: Tensor) -> list[Tensor]:
        heads = [self._cache.layers[layer].num_kv_heads for layer in self._cache.full_layers]
        return [positions[:count].expand(count, -1) for positions, count in zip(chosen, heads, strict=True)]

    def _top_sets(self, weights: Tensor) -> Tensor:
        """Positions that an oracle reads, for scores of shape ``[rows, num_kv_heads, prefix]``."""
        rows, _, prefix_len = weights.shape
        counts = torch.tensor([[prefix_len], [self._config.budget(prefix_len)]], device=weights.device).expand(2, rows)
        return select_positions(weights, counts[0], counts[1])


def _members(positions: Tensor, length: int) -> Tensor:
    members = torch.zeros(*positions.shape[:-1], length, dtype=torch.bool, device=positions.device)
    return members.scatter_(-1, positions, True)


def _share(positions: Tensor, among: Tensor, length: int) -> Tensor:
    """Share of `positions` that are `among` others, per row."""
    return _members(among, length).gather(1, positions).float().mean(1)


def _stack(tensors: Sequence[Tensor], fill: float) -> Tensor:
    """Stack tensors whose sizes may differ, filled up at their ends."""
    sizes = [max(each) for each in zip(*(tensor.shape for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        room = [(0, size - have) for size, have in zip(sizes, tensor.shape, strict=True)]
        padded.append(F.pad(tensor, [amount for pair in reversed(room) for amount in pair], value=fill))
    return torch.stack(padded)
