"""Inputs and timing of `benchmarks/ops.py`: one layer of a model at a batch and context, and CUDA-graph medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention

QUERY_LEN = 7
TAIL = 13
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """One layer's shape, batch and context."""

    model: str
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: int

    @property
    def name(self) -> str:
        """Model, batch and context."""
        return f"{self.model} {self.batch} x {self.context // 1024}K"

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, in bytes."""
        return 4 * self.kv_heads * self.head_dim

    def budget(self, share: float) -> int:
        """KV entries of a draft step, as by the shipped ``kv_budget_min``."""
        return max(256, math.ceil(share * self.context))


CASES = (
    Case("Qwen3-8B", 32, 8, 128, 16, 16_384),
    Case("Qwen3-8B", 32, 8, 128, 32, 16_384),
    Case("Qwen3-8B", 32, 8, 128, 16, 32_768),
    Case("Qwen3-8B", 32, 8, 128, 4, 131_072),
    Case("Qwen3-8B", 32, 8, 128, 1, 131_072),
    Case("Qwen3-8B", 32, 8, 128, 64, 8_192),
    Case("Qwen3-1.7B", 16, 8, 128, 16, 32_768),
    Case("gpt-oss-20b", 64, 8, 64, 16, 32_768),
)


def measure(calls: Sequence[Callable[[], object]], repeats: int = 12) -> float:
    """Median milliseconds of a call; several calls take turns within one CUDA graph, so that no cache serves them."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    count = max(8, len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            calls[index % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / count)
    return statistics.median(times)


class Layer:
    """One layer's cache and queries on the device, in vLLM's joint layout, pages in random order."""

    def __init__(self, case: Case) -> None:
        self.case = case
        device = torch.device("cuda")
        pages = case.context // BLOCK_SIZE + 2
        generator = torch.Generator(device).manual_seed(0)
        shape = (case.batch * pages, BLOCK_SIZE, case.kv_heads, 2 * case.head_dim)
        cache = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for part in cache.split(1 << 14):
            part.normal_(generator=generator)
        self.cache = cache
        self.key, self.value = cache.split(case.head_dim, -1)
        self.block_table = torch.randperm(shape[0], generator=generator, device=device).int().view(case.batch, pages)
        rows = (case.batch * QUERY_LEN, case.heads, case.head_dim)
        self.query = 2 * torch.randn(rows, generator=generator, device=device, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.query)
        self.query_start_loc = (torch.arange(case.batch + 1, device=device) * QUERY_LEN).int()
        self.seq_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
        self.prefix_lens = self.seq_lens - QUERY_LEN + 1
        self.plan = VerifyPlan.allocate(
            num_heads=case.heads,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            max_query_len=QUERY_LEN,
            max_requests=case.batch,
            score_capacity=case.batch * case.context,
            device=device,
        )
        self.plan.prepare(self.query_start_loc, self.seq_lens)
        self.workspace = SparseWorkspace.allocate(
            num_heads=case.heads,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            max_requests=case.batch,
            device=device,
        )

    def verify(self, score: str | None) -> None:
        """One verification."""
        verify_attention(
            self.query,
            self.key,
            self.value,
            self.block_table,
            self.query_start_loc,
            self.seq_lens,
            self.plan,
            out=self.out,
            scale=self.case.head_dim**-0.5,
            score=score,  # type: ignore[arg-type]
        )

    def select(self, counts: Tensor, slots: Tensor, score: str) -> None:
        """One selection, of what `verify` scored last."""
        select_kv(self.plan, counts, self.block_table, BLOCK_SIZE, slots=slots, score=score, tail=TAIL)  # type: ignore[arg-type]

    def random_lists(self, share: float, groups: int, count: int) -> tuple[list[Tensor], Tensor]:
        """Several lists of random slots in ascending position, as `select_kv` writes them, and their lengths."""
        case, budget = self.case, self.case.budget(share)
        prefix = case.context - QUERY_LEN + 1
        lists = []
        for _ in range(count):
            chosen = torch.rand(case.batch, groups, prefix, device="cuda").topk(budget).indices.sort().values
            tail = torch.arange(prefix, prefix + TAIL, device="cuda").expand(case.batch, groups, -1)
            position = torch.cat([chosen, tail], -1)
            table = self.block_table.long()[:, None].expand(-1, groups, -1)
            block = table.gather(2, position // BLOCK_SIZE)
            lists.append((block * BLOCK_SIZE + position % BLOCK_SIZE).int().contiguous())
        return lists, torch.full((case.batch,), budget, dtype=torch.int32, device="cuda")

    def sparse(self, slots: Tensor, counts: Tensor) -> None:
        """One draft step's attention."""
        batch = self.case.batch
        sparse_attention(
            self.query[:batch],
            self.key,
            self.value,
            slots,
            counts,
            self.prefix_lens,
            self.seq_lens,
            self.workspace,
            out=self.out[:batch],
            scale=self.case.head_dim**-0.5,
        )


class Stock:
    """FlashAttention 3 as vLLM's wheel brings it, on the same inputs."""

    def __init__(self, layer: Layer) -> None:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

        self._attend, self._schedule, self.layer = flash_attn_varlen_func, get_scheduler_metadata, layer

    def verify(self) -> float:
        """Milliseconds of a verification, with or without a schedule computed beforehand, whichever is faster."""
        layer, case = self.layer, self.layer.case
        schedule = self._schedule(
            batch_size=case.batch,
            max_seqlen_q=QUERY_LEN,
            max_seqlen_k=case.context,
            num_heads_q=case.heads,
            num_heads_kv=case.kv_heads,
            headdim=case.head_dim,
            cache_seqlens=layer.seq_lens,
            qkv_dtype=torch.bfloat16,
            cu_seqlens_q=layer.query_start_loc,
            page_size=BLOCK_SIZE,
            causal=True,
            num_splits=32,
        )
        options = {
            "q": layer.query,
            "k": layer.key,
            "v": layer.value,
            "max_seqlen_q": QUERY_LEN,
            "cu_seqlens_q": layer.query_start_loc,
            "max_seqlen_k": case.context,
            "seqused_k": layer.seq_lens,
            "softmax_scale": case.head_dim**-0.5,
            "causal": True,
            "block_table": layer.block_table,
            "out": layer.out,
            "fa_version": 3,
        }
        return min(
            measure([lambda: self._attend(**options)]),
            measure([lambda: self._attend(**options, scheduler_metadata=schedule, num_splits=32)]),
        )

    def sparse(self, lists: Sequence[Tensor], length: int) -> float:
        """Milliseconds of a draft step over pages of one token, the same for all heads."""
        layer, case = self.layer, self.layer.case
        slots = layer.cache.shape[0] * BLOCK_SIZE
        key, value = layer.cache.view(slots, 1, case.kv_heads, -1).split(case.head_dim, -1)
        starts = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda")
        lengths = torch.full((case.batch,), length, dtype=torch.int32, device="cuda")

        def step(table: Tensor) -> None:
            self._attend(
                q=layer.query[: case.batch],
                k=key,
                v=value,
                max_seqlen_q=1,
                cu_seqlens_q=starts,
                max_seqlen_k=length,
                seqused_k=lengths,
                softmax_scale=case.head_dim**-0.5,
                causal=True,
                block_table=table,
                out=layer.out[: case.batch],
                fa_version=3,
            )

        return measure([lambda table=slots[:, 0]: step(table) for slots in lists])
