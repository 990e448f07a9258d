"""FlashAttention 3, as vLLM's wheel brings it, on a layer's inputs: what the kernels are compared with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vegas_bench.measure.kernels.cases import BLOCK_SIZE, QUERY_LEN
from vegas_bench.measure.kernels.layer import Layer
from vegas_bench.measure.kernels.timing import Milliseconds


def has_flash_attention() -> bool:
    """Whether vLLM is installed with a FlashAttention 3 that runs on this GPU."""
    try:
        from vllm.vllm_flash_attn import is_fa_version_supported
    except ImportError:  # no vLLM, or its build for CPUs
        return False
    return bool(is_fa_version_supported(3))


class Stock:
    """FlashAttention 3 as vLLM's wheel brings it, on the same inputs."""

    def __init__(self, layer: Layer, milliseconds: Milliseconds) -> None:
        self.layer, self._milliseconds = layer, milliseconds

    def verify(self) -> float:
        """Milliseconds of a verification, with or without a schedule computed beforehand, whichever is faster."""
        from vllm.vllm_flash_attn import get_scheduler_metadata

        layer, case = self.layer, self.layer.case
        schedule = get_scheduler_metadata(
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
        attend = functools.partial(
            self._attend,
            (layer.key, layer.value),
            layer.block_table,
            (layer.query_start_loc, QUERY_LEN),
            (layer.seq_lens, case.context),
        )
        scheduled = functools.partial(attend, scheduler_metadata=schedule, num_splits=32)
        return min(self._milliseconds([attend]), self._milliseconds([scheduled]))

    def sparse(self, lists: Sequence[Tensor], length: int) -> float:
        """Milliseconds of a draft step over pages of one token, the same for all heads."""
        layer, case = self.layer, self.layer.case
        slots = layer.cache.shape[0] * BLOCK_SIZE
        key, value = torch.split(layer.cache.view(slots, 1, case.kv_heads, -1), case.head_dim, -1)
        starts = torch.arange(case.batch + 1, dtype=torch.int32, device=layer.device)
        lengths = torch.full((case.batch,), length, dtype=torch.int32, device=layer.device)
        return self._milliseconds(
            [
                functools.partial(self._attend, (key, value), each[:, 0], (starts, 1), (lengths, length))
                for each in lists
            ]
        )

    def _attend(
        self,
        cache: tuple[Tensor, Tensor],
        table: Tensor,
        queries: tuple[Tensor, int],
        lengths: tuple[Tensor, int],
        **options: Any,
    ) -> None:
        """Attend; of queries and keys, where or how many each request has, and the most of them."""
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        layer, rows = self.layer, self.layer.case.batch * queries[1]
        flash_attn_varlen_func(
            q=layer.query[:rows],
            k=cache[0],
            v=cache[1],
            max_seqlen_q=queries[1],
            cu_seqlens_q=queries[0],
            max_seqlen_k=lengths[1],
            seqused_k=lengths[0],
            softmax_scale=layer.case.head_dim**-0.5,
            causal=True,
            block_table=table,
            out=layer.out[:rows],
            fa_version=3,
            **options,
        )
