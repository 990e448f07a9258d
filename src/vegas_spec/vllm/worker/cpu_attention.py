"""Attention on a CPU, over vLLM's CPU backend: the plugin end to end on a machine without a GPU.

K and V of a token lie in one row of the cache, which is the view that vLLM has of every cache; nobody but the CPU
kernels can read their own arrangement inside a block, so plain torch stands in for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from vegas_spec.vllm.worker.attention import VegasAttention, VegasMetadataBuilder


class VegasCPUMetadataBuilder(VegasMetadataBuilder, CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Builds vLLM's CPU metadata with ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Everything that changes from one draft step to the next is read from tensors that the speculator updates.
        self.supports_draft_decode_metadata_update = True

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Nothing to do: see ``__init__``."""


class RowCacheAttention(CPUAttentionBackendImpl):  # type: ignore[misc]
    """Dense attention over a cache with K and V of a token in one row, request by request."""

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Store K and V of every token that has a slot."""
        stored = slot_mapping >= 0
        slots = slot_mapping[stored]
        block_size = kv_cache.shape[2]
        rows = torch.cat([key, value], dim=-1)[: stored.shape[0]][stored]
        kv_cache[slots // block_size, :, slots % block_size] = rows.to(kv_cache.dtype)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionImpl.forward`."""
        if attn_metadata is None:
            return output
        bounds = attn_metadata.query_start_loc.tolist()
        for request, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            start, end = bounds[request], bounds[request + 1]
            # Padding, and requests that a draft leaves out, have no tokens.
            if start < end and seq_len > 0:
                keys, values = self.cached(kv_cache, attn_metadata.block_table[request], seq_len)
                output[start:end] = self.attend(query[start:end], keys, values).to(output.dtype)
        return output

    def cached(self, kv_cache: Tensor, block_table: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
        """K and V of one request, float32, each ``[kv_heads, seq_len, head_dim]``."""
        block_size = kv_cache.shape[2]
        blocks = kv_cache[block_table[: -(-seq_len // block_size)].long()]
        keys, values = blocks.transpose(0, 1).flatten(1, 2)[:, :seq_len].float().chunk(2, dim=-1)
        return keys, values

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend from a request's newest tokens, ``[rows, heads, head_dim]``: causal, within the window if any."""
        rows, heads, dim = query.shape
        seq_len = keys.shape[1]
        grouped = query.float().view(rows, self.num_kv_heads, heads // self.num_kv_heads, dim)
        logits = self.scale * torch.einsum("tkgd,ksd->tkgs", grouped, keys)
        if self.logits_soft_cap:
            logits = self.logits_soft_cap * torch.tanh(logits / self.logits_soft_cap)
        position, key = torch.arange(seq_len - rows, seq_len)[:, None], torch.arange(seq_len)
        hidden = key > position
        if self.sliding_window > 0:
            hidden |= key <= position - self.sliding_window
        logits = logits.masked_fill(hidden[:, None, None], -torch.inf)
        if self.sinks is not None:
            sinks = self.sinks.float().view(1, self.num_kv_heads, -1, 1).expand(*logits.shape[:3], 1)
            logits = torch.cat([logits, sinks], dim=-1)
        weights = torch.softmax(logits, dim=-1)[..., :seq_len]
        return torch.einsum("tkgs,ksd->tkgd", weights, values).flatten(1, 2)


class VegasCPUAttentionImpl(VegasAttention, RowCacheAttention):
    """Row-cache attention with Vegas in it."""


class VegasCPUAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """The CPU backend of vLLM with Vegas in it."""

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Decoders only."""
        return bool(attn_type == AttentionType.DECODER)

    @staticmethod
    def get_impl_cls() -> type[VegasCPUAttentionImpl]:
        """See `AttentionBackend.get_impl_cls`."""
        return VegasCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[VegasCPUMetadataBuilder]:
        """See `AttentionBackend.get_builder_cls`."""
        return VegasCPUMetadataBuilder
