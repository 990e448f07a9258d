"""How much the buffers of Vegas may take, from what the device can hold at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.policies import make_policy

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
    contexts = vllm_config.scheduler_config.max_num_seqs * vllm_config.model_config.max_model_len
    total = device_bytes()
    if total is None:
        return MemoryLimits(contexts, None)
    element = cache_itemsize(vllm_config)
    token_bytes = sum(2 * layer.num_kv_heads * layer.head_size * element for layer in layers.values())
    return MemoryLimits(min(contexts, total // token_bytes), draft_kv_bytes())


def device_bytes() -> int | None:
    """Memory of a device; None where it is the host's."""
    from vllm.platforms import current_platform

    platform: Any = current_platform
    return int(platform.get_device_total_memory()) if platform.is_cuda_alike() else None


def draft_kv_bytes() -> int | None:
    """Most memory for the slots that drafts read; None for no bound."""
    total = device_bytes()
    return None if total is None else int(DRAFT_KV_SHARE * total)


def draft_lists(config: VegasConfig, num_layers: int, num_kv_heads: int) -> tuple[int, int]:
    """Sets of positions that a step chooses for a request: lists over all layers, and groups of each."""
    policy = make_policy(config)
    # A step's own lists serve one layer after the other; one list for all may be needed per block table.
    shared = policy.per_step or policy.sets == "model"
    return 1 if shared else num_layers, num_kv_heads if policy.sets == "kv_head" else 1


def largest_budget(
    config: VegasConfig,
    num_layers: int,
    num_kv_heads: int,
    max_requests: int,
    max_model_len: int,
    max_bytes: int | None,
) -> int:
    """Entries that drafts may read of the longest context, per layer and group, where memory has a bound.

    ``min(budget(max_model_len), max_bytes / (4 * lists * groups * max_requests) - tail)``, and ``kv_budget_min`` at
    least; ``tail`` is `VegasConfig.tail`.
    """
    wanted = config.budget(max_model_len)
    if max_bytes is None:
        return wanted
    lists, groups = draft_lists(config, num_layers, num_kv_heads)
    fitting = max_bytes // (lists * max_requests * groups * 4) - config.tail
    return max(min(wanted, fitting), min(config.kv_budget_min, max_model_len))


def cache_itemsize(vllm_config: Any) -> int:
    """Bytes of one number in the KV cache."""
    quantised = str(vllm_config.cache_config.cache_dtype).startswith("fp8")
    return 1 if quantised else int(vllm_config.model_config.dtype.itemsize)
