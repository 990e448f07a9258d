"""The backend on the kernels of `vegas_spec.ops`: verification selects layer by layer, in the same forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.engine.attention import AttentionParams
from vegas_spec.engine.backend import Backend, Selection
from vegas_spec.engine.kv_cache import BLOCK_SIZE, KVCache, LayerSpec
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention
from vegas_spec.ops.tuning import MAX_COLUMNS
from vegas_spec.policies import make_policy
from vegas_spec.selection import with_recent


def check_kernels(layers: Sequence[LayerSpec], config: VegasConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Raise a `ConfigError` unless the kernels do what the policy asks for in these layers.

    They draft over lists of entries that last for a whole draft, so a policy that selects at each step is not covered.
    """
    columns = max(layer.num_query_heads // layer.num_kv_heads for layer in layers) * (config.num_speculative_tokens + 1)
    policy = make_policy(config)
    last = policy.score_request is not None and policy.score_request.rows == "last"
    covered = not policy.per_step and not last and columns <= MAX_COLUMNS
    # On a CPU, where it is asked for, the kernels' references run, in any dtype.
    runs = device.type != "cuda" or dtype in (torch.bfloat16, torch.float16)
    if not (runs and covered):
        raise ConfigError(
            "attention='kernels' supports bfloat16 and float16 on a GPU, policies that select once per iteration (not "
            "quest, not oracle), rows ends or all, and up to 128 query rows per KV head; "
            f"got {dtype} with {config}. Use attention='torch' instead"
        )


class KernelBackend(Backend):
    """One launch per layer and op, for all requests of a batch together."""

    def __init__(self, cache: KVCache, config: VegasConfig) -> None:
        super().__init__(cache, config)
        self.slots, self.length = cache.keys[0].shape[0], cache.length
        self.request = self.policy.score_request
        self.tail = config.tail
        self.paged = [
            (self._pages(keys), self._pages(values)) for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self._all_blocks = self._block_tables()
        self._plans: dict[tuple[int, int, int, int | None], VerifyPlan] = {}
        self._workspaces: dict[tuple[int, int, int], SparseWorkspace] = {}
        self._places: dict[int, int] = {}
        """Of the latest verification's requests in its batch, by slot: whose rows the lists and counts are."""
        self._counts, self._prefix_lens = self._ints([0] * self.slots), self._ints([0] * self.slots)
        self.lists: dict[int, Tensor] = {}
        """By layer, the cache slots that drafts read; int32, shape ``[requests, groups, width]``."""
        if self.request is not None:
            width = config.budget(self.length) + self.tail
            for layer in self.layers:
                groups = layer.num_kv_heads if self.request.granularity == "kv_head" else 1
                self.lists[layer.index] = torch.zeros(self.slots, groups, width, dtype=torch.int32, device=self.device)

    def _begin(self) -> None:
        """Put on the device, once for all layers, where the pass's rows stand."""
        if self.kind == "prompt":
            return
        batch = self.batch
        self._row_slots = self._longs([rows.slot for rows in batch for _ in range(rows.count)])
        self._positions = self._longs([position for rows in batch for position in range(rows.start, rows.stop)])
        self._seq_lens = self._ints([rows.stop for rows in batch])
        self._query_start_loc = torch.tensor([0, *(rows.count for rows in batch)]).cumsum(0).int().to(self.device)
        slots = self._longs([rows.slot for rows in batch])
        self._block_table = {heads: table[slots] for heads, table in self._all_blocks.items()}
        self._prepared: set[int] = set()
        if self.kind == "verify":
            self._places = {rows.slot: place for place, rows in enumerate(batch)}
            self._prefix_lens = self._ints([rows.start + 1 for rows in batch])
            self._counts = self._ints(self.budgets)
        elif self.kind == "draft":
            self._rows_of = self._longs([self._places[rows.slot] for rows in batch])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """See `Attending.attend`."""
        if self.kind == "prompt":  # of more rows than the kernels take
            return self._attend_to_all(layer, query, key, value, params)[0]
        spec = self.cache.layers[layer]
        self.cache.keys[layer][self._row_slots, :, self._positions] = key.transpose(0, 1)
        self.cache.values[layer][self._row_slots, :, self._positions] = value.transpose(0, 1)
        rows = query.transpose(0, 1).contiguous()
        if self.kind == "draft" and layer in self.lists:
            return sparse_attention(
                rows,
                *self.paged[layer],
                self.lists[layer][self._rows_of],
                self._counts[self._rows_of],
                self._prefix_lens[self._rows_of],
                self._seq_lens,
                self._workspace(spec),
                out=torch.empty_like(rows),
                scale=params.scale,
                softcap=params.softcap,
                sinks=params.sinks,
            )
        request = self.request if self.kind == "verify" and spec.sliding_window is None else None
        plan, blocks = self._plan(spec), self._block_table[spec.num_kv_heads]
        out = verify_attention(
            rows,
            *self.paged[layer],
            blocks,
            self._query_start_loc,
            self._seq_lens,
            plan,
            out=torch.empty_like(rows),
            scale=params.scale,
            score=request.score if request else None,
            rows=request.rows if request else "ends",
            softcap=params.softcap,
            sinks=params.sinks,
        )
        if request is not None:
            lists = self.lists[layer][: len(self.batch)]
            with self.clock:
                select_kv(plan, self._counts, blocks, BLOCK_SIZE, slots=lists, score=request.score, tail=self.tail)
        if self.kind == "verify" and self.policy.keeps_queries:
            for place, own in enumerate(torch.split(query, [rows.count for rows in self.batch], dim=1)):
                self._keep_queries(layer, place, own, params)
        return out

    def select(self, num_accepted: Sequence[int], committed: Sequence[int]) -> Selection:
        """See `Backend.select`; a verification that scores has selected already, and acceptance does not matter."""
        if self.request is not None and self.lists:
            return Selection(list(self.budgets), None)
        found = self._ask(num_accepted, None)
        if found.positions is not None:
            self._counts = self._ints(found.counts)
            slots = self._longs([rows.slot for rows in self.batch])
            for place, layer in enumerate(self.layers):
                first = slots * layer.num_kv_heads * self.length
                self.lists[layer.index] = self._list(found.positions[place], first)
        return found

    def _list(self, chosen: Tensor, first: Tensor) -> Tensor:
        """List cache slots as `select_kv` does: the chosen positions, then the ``tail`` ones from the prefix's end on.

        ``chosen`` holds positions, shape ``[batch, groups, k]``; ``first`` is each request's first cache slot.
        """
        positions = with_recent(chosen, self._counts, self._prefix_lens, chosen.shape[-1] + self.tail)
        # What is past the request's region is past its end, and never read.
        return (first[:, None, None] + positions.clamp(max=self.length - 1)).int().contiguous()

    def _plan(self, layer: LayerSpec) -> VerifyPlan:
        """Give the plan that all layers of this shape and window share, prepared for the present pass."""
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
                lookahead=self.request.lookahead if self.request else 0.0,
            )
        plan = self._plans[shape]
        if id(plan) not in self._prepared:
            plan.prepare(self._query_start_loc, self._seq_lens)
            self._prepared.add(id(plan))
        return plan

    def _workspace(self, layer: LayerSpec) -> SparseWorkspace:
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

    def _pages(self, entries: Tensor) -> Tensor:
        """View ``[slots, heads, length, head_dim]`` as pages ``[blocks, block_size, heads, head_dim]``.

        A head's pages follow one another, so a block's number counts pages of all heads, and the heads of one block are
        ``length`` tokens apart.
        """
        slots, heads, length, dim = entries.shape
        blocks = (slots - 1) * heads * (length // BLOCK_SIZE) + length // BLOCK_SIZE
        return entries.as_strided((blocks, BLOCK_SIZE, heads, dim), (BLOCK_SIZE * dim, dim, length * dim, 1))

    def _block_tables(self) -> dict[int, Tensor]:
        """Block tables by number of KV heads, int32, shape ``[slots, blocks]``."""
        blocks = self.length // BLOCK_SIZE
        first = torch.arange(self.slots, device=self.device)[:, None] * blocks
        own = torch.arange(blocks, device=self.device)
        heads = {layer.num_kv_heads for layer in self.cache.layers}
        return {count: (first * count + own).int() for count in heads}

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)
