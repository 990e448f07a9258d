"""FlashAttention 3, as vLLM's wheel brings it, on a layer's inputs: what the kernels are compared with."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_bench.measure.kernels.cases import BLOCK_SIZE, QUERY_LEN
from vegas_bench.measure.kernels.layer import Layer
from vegas_bench.measure.kernels.stock_attention import flash_attention
from vegas_bench.measure.kernels.timing import Milliseconds


class Stock:
    """FlashAttention 3 as vLLM's wheel brings it, on the same inputs."""

    def __init__(self, layer: Layer, milliseconds: Milliseconds) -> None:
        self._attend, self._schedule = flash_attention()
        self.layer, self._milliseconds = layer, milliseconds

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
            self._milliseconds([lambda: self._attend(**options)]),
            self._milliseconds([lambda: self._attend(**options, scheduler_metadata=schedule, num_splits=32)]),
        )

    def sparse(self, lists: Sequence[Tensor], length: int) -> float:
        """Milliseconds of a draft step over pages of one token, the same for all heads."""
        layer, case = self.layer, self.layer.case
        slots = layer.cache.shape[0] * BLOCK_SIZE
        key, value = torch.split(layer.cache.view(slots, 1, case.kv_heads, -1), case.head_dim, -1)
        starts = torch.arange(case.batch + 1, dtype=torch.int32, device=layer.device)
        lengths = torch.full((case.batch,), length, dtype=torch.int32, device=layer.device)

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

        return self._milliseconds([functools.partial(step, slots[:, 0]) for slots in lists])
