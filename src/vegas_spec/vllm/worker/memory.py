"""How much the buffers of Vegas may take, from what the device can hold at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DRAFT_KV_SHARE = 0.02
"""Of the device's memory: room for the slots that drafts read, so the most that is taken from stock vLLM's KV cache.
Chosen by hand: it holds 5 % of 130K tokens for 256 requests of an 8B model on an H200 (`start.serve.MAX_NUM_SEQS`)."""


@dataclass(frozen=True)
class MemoryLimits:
    """Bounds that hold whatever vLLM's memory profile finds.

    Attributes
    ----------
    tokens : int
        Tokens in flight: as many as the requests' contexts can have, or as the device's memory could cache.
    draft_kv_bytes : int or None
        For the slots that drafts read; None for no bound.

    """

    tokens: int
    draft_kv_bytes: int | None


def memory_limits(vllm_config: Any, layers: dict[str, Any]) -> MemoryLimits:
    """Read the limits off the configuration, the built attention layers and the device."""
    from vllm.platforms import current_platform

    contexts = vllm_config.scheduler_config.max_num_seqs * vllm_config.model_config.max_model_len
    platform: Any = current_platform
    if not platform.is_cuda_alike():
        return MemoryLimits(contexts, None)
    device_bytes = platform.get_device_total_memory()
    element = cache_itemsize(vllm_config)
    token_bytes = sum(2 * layer.num_kv_heads * layer.head_size * element for layer in layers.values())
    return MemoryLimits(min(contexts, device_bytes // token_bytes), int(DRAFT_KV_SHARE * device_bytes))


def cache_itemsize(vllm_config: Any) -> int:
    """Bytes of one number in the KV cache."""
    quantised = str(vllm_config.cache_config.cache_dtype).startswith("fp8")
    return 1 if quantised else int(vllm_config.model_config.dtype.itemsize)
