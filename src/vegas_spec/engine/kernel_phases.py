"""The phases on the kernels of `vegas_spec.ops`: verification selects layer by layer, in the same forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import AttentionParams, Rows
from vegas_spec.engine.collect import QueryBuffer
from vegas_spec.engine.kv_cache import BLOCK_SIZE, KVCache, LayerSpec
from vegas_spec.engine.phases import Phases
from vegas_spec.engine.request import Request
from vegas_spec.engine.steps import Step
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention
from vegas_spec.ops.tuning import MAX_COLUMNS
from vegas_spec.policies import Policy, ScoreRequest


def kernels_cover(layers: Sequence[LayerSpec], policy: Policy, config: VegasConfig) -> bool:
    """Whether the kernels do what a policy asks for in these layers; `TorchPhases` does all of it.

    They draft over lists of entries that last for a whole draft, so a policy that selects at each step is not covered.
    """
    columns = max(layer.num_query_heads // layer.num_kv_heads for layer in layers) * (config.num_speculative_tokens + 1)
    request = policy.score_request
    return not policy.per_step and (request is None or request.rows != "last") and columns <= MAX_COLUMNS


class KernelPhases(Phases):
    """One launch per layer and op, for all requests of a batch together."""

    def __init__(self, cache: KVCache, policy: Policy, config: VegasConfig) -> None:
        super().__init__(cache, policy, config)
        self.device = cache.keys[0].device
        self.slots, self.length = cache.keys[0].shape[0], cache.length
        self.request: ScoreRequest | None = policy.score_request
        self.block_table = self._block_table()
        self.paged = [
            (self._pages(keys), self._pages(values)) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self._plans: dict[tuple[int, int, int, int | None], VerifyPlan] = {}
        self._workspaces: dict[tuple[int, int, int], SparseWorkspace] = {}
        self._places: dict[int, int] = {}
        self.counts = self.ints([0] * self.slots)
        self.prefix_lens = self.ints([0] * self.slots)
        self.tail = 2 * config.num_speculative_tokens + 1
        self.lists: dict[int, Tensor] = {}
        """By layer, the cache slots that drafts read; int32, shape ``[requests, groups, width]``."""
        if self.request is not None:
            width = config.budget(self.length) + self.tail
            for layer in self.full_layers:
                groups = layer.num_kv_heads if self.request.granularity == "kv_head" else 1
                self.lists[layer.index] = torch.zeros(self.slots, groups, width, dtype=torch.int32, device=self.device)

    def draft(self, batch: Sequence[Rows]) -> Step:
        """See `Phases.draft`."""
        places = [self._places[rows.slot] for rows in batch]
        return _KernelDraft(self, batch, torch.tensor(places, device=self.device))

    def verify(self, batch: Sequence[Rows]) -> Step:
        """See `Phases.verify`."""
        self._places = {rows.slot: place for place, rows in enumerate(batch)}
        self._queries = QueryBuffer(self.cache) if self.policy.keeps_queries and self.full_layers else None
        self.prefix_lens = self.ints([rows.start + 1 for rows in batch])
        self.counts = self.config.budget(self.prefix_lens).int()
        return _KernelVerification(self, batch)

    def select(self, batch: Sequence[Request], num_accepted: Sequence[int]) -> None:
        """See `Phases.select`; a verification that scores has selected already, and acceptance does not matter."""
        if self.request is not None and self.lists:
            for request in batch:
                request.num_selected = self.config.budget(request.prefix_len)
            return
        chosen = self._ask(batch, num_accepted, None)
        if chosen is not None:
            self.counts = self.ints([request.num_selected for request in batch])
            slots = torch.tensor([request.slot for request in batch], device=self.device)
            for place, layer in enumerate(self.full_layers):
                self.lists[layer.index] = self._list(chosen[place], slots * layer.num_kv_heads * self.length)

    def _list(self, chosen: Tensor, first: Tensor) -> Tensor:
        """List cache slots as `select_kv` does: the chosen positions, then the ``tail`` ones from the prefix's end on.

        ``chosen`` holds positions, shape ``[batch, groups, k]``; ``first`` is each request's first cache slot.
        """
        padded = F.pad(chosen, (0, self.tail))
        column = torch.arange(padded.shape[-1], device=self.device)
        counts, prefix_lens = self.counts[:, None, None].long(), self.prefix_lens[:, None, None].long()
        positions = torch.where(column < counts, padded, prefix_lens + column - counts)
        # What is past the request's region is past its end, and never read.
        return (first[:, None, None] + positions.clamp(max=self.length - 1)).int().contiguous()

    def plan(self, layer: LayerSpec) -> VerifyPlan:
        """Give the plan that all layers of this shape and window share."""
        shape = (layer.num_query_heads, layer.num_kv_heads, layer.head_dim, layer.sliding_window)
        if shape not in self._plans:
            scored = self.request is not None and layer.sliding_window is None
            self._plans[shape] = VerifyPlan.allocate(
                num_heads=layer.num_query_heads,
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                max_query_len=self.config.num_speculative_tokens + 1,
                max_requests=self.slots,
                score_capacity=self.slots * self.length if scored else 0,
                device=self.device,
                window=layer.sliding_window,
                granularity=self.request.granularity if self.request else "kv_head",
            )
        return self._plans[shape]

    def workspace(self, layer: LayerSpec) -> SparseWorkspace:
        """Give the scratch that all drafting layers of this shape share."""
        shape = (layer.num_query_heads, layer.num_kv_heads, layer.head_dim)
        if shape not in self._workspaces:
            self._workspaces[shape] = SparseWorkspace.allocate(
                num_heads=shape[0],
                num_kv_heads=shape[1],
                head_dim=shape[2],
                max_requests=self.slots,
                device=self.device,
            )
        return self._workspaces[shape]

    def keep_queries(self, layer: int, batch: Sequence[Rows], query: Tensor, params: AttentionParams) -> None:
        """Keep the packed rows' queries, request by request, if the policy wants this layer's."""
        if self._queries is not None:
            for place, own in enumerate(torch.split(query, [rows.count for rows in batch], dim=1)):
                self._queries.keep(layer, place, own, params)

    def ints(self, values: Sequence[int]) -> Tensor:
        """Put integers on the device, int32."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def _pages(self, entries: Tensor) -> Tensor:
        """View ``[slots, heads, length, head_dim]`` as pages ``[blocks, block_size, heads, head_dim]``.

        A head's pages follow one another, so a block's number counts pages of all heads, and the heads of one block are
        ``length`` tokens apart.
        """
        slots, heads, length, dim = entries.shape
        blocks = (slots - 1) * heads * (length // BLOCK_SIZE) + length // BLOCK_SIZE
        return entries.as_strided((blocks, BLOCK_SIZE, heads, dim), (BLOCK_SIZE * dim, dim, length * dim, 1))

    def _block_table(self) -> dict[int, Tensor]:
        """Block tables by number of KV heads, int32, shape ``[slots, blocks]``."""
        blocks = self.length // BLOCK_SIZE
        first = torch.arange(self.slots, device=self.device)[:, None] * blocks
        own = torch.arange(blocks, device=self.device)
        heads = {layer.num_kv_heads for layer in self.cache.layers}
        return {count: (first * count + own).int() for count in heads}


class _KernelStep(Step):
    """What verification and drafting share: writing the cache, and attention over all of it."""

    def __init__(self, phases: KernelPhases, batch: Sequence[Rows]) -> None:
        self.phases = phases
        self.batch = batch
        self.slots = torch.tensor([rows.slot for rows in batch], device=phases.device)
        row_slots = [rows.slot for rows in batch for _ in range(rows.count)]
        positions = [position for rows in batch for position in range(rows.start, rows.stop)]
        self._row_slots = torch.tensor(row_slots, device=phases.device)
        self._positions = torch.tensor(positions, device=phases.device)
        self.seq_lens = phases.ints([rows.stop for rows in batch])
        starts = torch.tensor([0, *(rows.count for rows in batch)]).cumsum(0).int()
        self._query_start_loc = starts.to(phases.device)
        # One for all layers of the step.
        self.block_table = {heads: table[self.slots] for heads, table in phases.block_table.items()}
        self._prepared: set[int] = set()

    def write(self, layer: LayerSpec, key: Tensor, value: Tensor) -> None:
        cache = self.phases.cache
        cache.keys[layer.index][self._row_slots, :, self._positions] = key.transpose(0, 1)
        cache.values[layer.index][self._row_slots, :, self._positions] = value.transpose(0, 1)

    def attend_to_all(self, layer: LayerSpec, query: Tensor, params: AttentionParams, scored: bool) -> Tensor:
        plan = self.phases.plan(layer)
        if id(plan) not in self._prepared:
            plan.prepare(self._query_start_loc, self.seq_lens)
            self._prepared.add(id(plan))
        request = self.phases.request if scored else None
        rows = query.transpose(0, 1).contiguous()
        return verify_attention(
            rows,
            *self.phases.paged[layer.index],
            self.block_table[layer.num_kv_heads],
            self._query_start_loc,
            self.seq_lens,
            plan,
            out=torch.empty_like(rows),
            scale=params.scale,
            score=request.score if request else None,
            rows=request.rows if request else "ends",
            softcap=params.softcap,
            sinks=params.sinks,
        )


class _KernelVerification(_KernelStep):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        spec, phases = self.phases.cache.layers[layer], self.phases
        self.write(spec, key, value)
        scored = phases.request is not None and spec.sliding_window is None
        out = self.attend_to_all(spec, query, params, scored)
        if scored and phases.request is not None:
            batch = len(self.slots)
            with phases.clock:
                select_kv(
                    phases.plan(spec),
                    phases.counts,
                    self.block_table[spec.num_kv_heads],
                    BLOCK_SIZE,
                    slots=phases.lists[layer][:batch],
                    score=phases.request.score,
                    tail=phases.tail,
                )
        phases.keep_queries(layer, self.batch, query, params)
        return out


class _KernelDraft(_KernelStep):
    def __init__(self, phases: KernelPhases, batch: Sequence[Rows], places: Tensor) -> None:
        super().__init__(phases, batch)
        self._places = places
        self._counts = phases.counts[places]
        self._prefix_lens = phases.prefix_lens[places]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        spec, phases = self.phases.cache.layers[layer], self.phases
        self.write(spec, key, value)
        if layer not in phases.lists:
            return self.attend_to_all(spec, query, params, scored=False)
        rows = query.transpose(0, 1).contiguous()
        return sparse_attention(
            rows,
            *phases.paged[layer],
            phases.lists[layer][self._places],
            self._counts,
            self._prefix_lens,
            self.seq_lens,
            phases.workspace(spec),
            out=torch.empty_like(rows),
            scale=params.scale,
            softcap=params.softcap,
            sinks=params.sinks,
        )
