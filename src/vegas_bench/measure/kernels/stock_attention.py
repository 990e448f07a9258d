"""vLLM's own FlashAttention, to measure beside ours."""

from __future__ import annotations

from typing import Any


def has_flash_attention() -> bool:
    """Whether vLLM is installed with a FlashAttention 3 that runs on this GPU."""
    try:
        from vllm.vllm_flash_attn import is_fa_version_supported
    except ImportError:  # no vLLM, or its build for CPUs
        return False
    return bool(is_fa_version_supported(3))


def flash_attention() -> tuple[Any, Any]:
    """``flash_attn_varlen_func`` and ``get_scheduler_metadata``."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    return flash_attn_varlen_func, get_scheduler_metadata
