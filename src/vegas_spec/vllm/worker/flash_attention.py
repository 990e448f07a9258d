"""Attention on a GPU, over vLLM's FlashAttention: prefill, and all that is not verification or draft, stays its own."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from vegas_spec.vllm.worker.attention import VegasAttention, VegasMetadataBuilder


class VegasFlashAttentionMetadataBuilder(VegasMetadataBuilder, FlashAttentionMetadataBuilder):  # type: ignore[misc]
    """Builds vLLM's metadata with ours."""

    # Full graphs serve uniform verifications and drafts; batches with prompts take the piecewise path, where requests
    # may differ in which rows are scored.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        """See `AttentionMetadataBuilder.build`.

        Drafts get no ahead-of-time schedule: it would describe the first step's lengths only.
        """
        return super().build(common_prefix_len, common_attn_metadata, fast_build or self.phase == "draft")

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Nothing to do: lengths are read from tensors that the speculator updates; there is no schedule to renew."""


class VegasFlashAttentionImpl(VegasAttention, FlashAttentionImpl):  # type: ignore[misc]
    """FlashAttention with Vegas in it."""


class VegasFlashAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    """The FlashAttention backend of vLLM with Vegas in it."""

    @staticmethod
    def get_name() -> str:
        """A member of vLLM's enum of backends."""
        return "CUSTOM"

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Decoders only."""
        return bool(attn_type == AttentionType.DECODER)

    @staticmethod
    def get_impl_cls() -> type[VegasFlashAttentionImpl]:
        """See `AttentionBackend.get_impl_cls`."""
        return VegasFlashAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[VegasFlashAttentionMetadataBuilder]:
        """See `AttentionBackend.get_builder_cls`."""
        return VegasFlashAttentionMetadataBuilder
