"""One layer's cache and queries on the device, and the kernels of `vegas_spec.ops` on them."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_bench.measure.kernels.cases import BLOCK_SIZE, QUERY_LEN, TAIL, Case
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention
from vegas_spec.ops.tuning import SparseTuning, VerifyTuning


class Layer:
    """One layer's cache and queries on the device, in vLLM's joint layout, pages in random order."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        pages = case.context // BLOCK_SIZE + 2
        generator = torch.Generator(device).manual_seed(0)
        shape = (case.batch * pages, BLOCK_SIZE, case.kv_heads, 2 * case.head_dim)
        cache = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for part in torch.split(cache, 1 << 14):
            part.normal_(generator=generator)
        self.cache = cache
        self.key, self.value = torch.split(cache, case.head_dim, -1)
        self.block_table = torch.randperm(shape[0], generator=generator, device=device).int().view(case.batch, pages)
        rows = (case.batch * QUERY_LEN, case.heads, case.head_dim)
        self.query = 2 * torch.randn(rows, generator=generator, device=device, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.query)
        self.query_start_loc = (torch.arange(case.batch + 1, device=device) * QUERY_LEN).int()
        self.seq_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
        self.prefix_lens = self.seq_lens - QUERY_LEN + 1
        self.tune()

    def tune(self, verify: VerifyTuning | None = None, sparse: SparseTuning | None = None) -> None:
        """Allocate scratch for these launch configurations; by default for those that the ops choose."""
        case = self.case
        self.plan = VerifyPlan.allocate(
            num_heads=case.heads,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            max_query_len=QUERY_LEN,
            max_requests=case.batch,
            score_capacity=case.batch * case.context,
            device=self.device,
            tuning=verify,
        )
        self.plan.prepare(self.query_start_loc, self.seq_lens)
        self.workspace = SparseWorkspace.allocate(
            num_heads=case.heads,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            max_requests=case.batch,
            device=self.device,
            tuning=sparse,
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
            chosen = torch.rand(case.batch, groups, prefix, device=self.device).topk(budget).indices.sort().values
            tail = torch.arange(prefix, prefix + TAIL, device=self.device).expand(case.batch, groups, -1)
            position = torch.cat([chosen, tail], -1)
            table = self.block_table.long()[:, None].expand(-1, groups, -1)
            block = table.gather(2, position // BLOCK_SIZE)
            lists.append((block * BLOCK_SIZE + position % BLOCK_SIZE).int().contiguous())
        return lists, torch.full((case.batch,), budget, dtype=torch.int32, device=self.device)

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
