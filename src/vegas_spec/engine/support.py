"""Which model architectures the engine can run, and why it refuses the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

TESTED = ("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "gpt_oss")
"""Model types that the test suite compares with transformers, token for token."""

_FULL_OR_SLIDING = {"full_attention", "sliding_attention"}


class ModelError(ValueError):
    """A model cannot be found, read or supported; the message says which and what to do."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out; on a CPU torch says so in a `RuntimeError`."""
    said_in_words = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or said_in_words


@contextlib.contextmanager
def memory_explained(name: str, device: object) -> Iterator[None]:
    """Give an error of missing memory one sentence that says of what; its kind stays."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        kind = torch.OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else MemoryError
        cause = (str(error).strip().splitlines() or ["no more is said"])[0]
        raise kind(
            f"{name} does not fit into the memory of {device}; load it in a smaller dtype, choose a smaller model, or "
            f"free memory ({cause})"
        ) from error


def check_supported(config: Any, name: str) -> None:
    """Refuse a transformers config whose attention is not softmax over one key and value per token and KV head.

    Raises
    ------
    ModelError
        Naming the architecture, the reason and a way out.

    """
    reason = _reason_against(config)
    if reason is not None:
        raise ModelError(
            f"{name} is of type {config.model_type!r}, which is not supported: {reason} Tested: {', '.join(TESTED)}."
        )


def _reason_against(config: Any) -> str | None:
    def has(option: str) -> bool:
        return bool(getattr(config, option, None))

    layer_types = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    rope_types = {str(rope.get("rope_type"))} | {
        str(per_kind.get("rope_type")) for per_kind in rope.values() if isinstance(per_kind, dict)
    }
    if has("is_encoder_decoder"):
        return "it is an encoder-decoder; Vegas needs a decoder-only model."
    if has("vision_config") or has("audio_config"):
        return "it takes images or sound; load its text-only variant instead, if it has one."
    if has("kv_lora_rank"):
        return "its multi-head latent attention (MLA) keeps one compressed entry for all heads."
    if has("num_kv_shared_layers"):
        return "its layers share keys and values."
    if has("use_bidirectional_attention"):
        return "its attention is bidirectional."
    if has("index_topk") or has("index_topk_blocks"):
        return "it selects keys by an indexer of its own."
    if other := layer_types - _FULL_OR_SLIDING:
        return f"it has layers of type {', '.join(sorted(other))}; only full and sliding attention can be drafted from."
    if any(has(option) for option in ("ssm_cfg", "mamba_d_state", "mamba_d_conv", "state_size", "linear_attn_config")):
        return "it has state-space or linear-attention layers, which have no keys to select."
    if rope_types & {"dynamic", "longrope"}:
        return "its rotary embedding changes with the length of the context, so cached keys would not stay exact."
    return None
