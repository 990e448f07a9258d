"""Validation of what callers hand to the ops: one form of message for every argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def refuse(argument: str, expected: str, got: object) -> ValueError:
    """Build the error about an argument: its name, what is expected, what was given."""
    return ValueError(f"{argument} must be {expected}; got {got}")


def check_tensor(
    argument: str,
    tensor: Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Refuse a tensor of another shape (None: any size), dtype or device."""
    fits = tensor.dim() == len(shape) and all(
        want is None or want == have for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        expected = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        raise refuse(argument, f"of shape {expected}", list(tensor.shape))
    if tensor.dtype not in dtypes:
        raise refuse(argument, "of dtype " + " or ".join(str(dtype) for dtype in dtypes), tensor.dtype)
    if tensor.device != device:
        raise refuse(argument, f"on {device}", tensor.device)


def check_contiguous(argument: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise refuse(argument, "contiguous", f"strides {list(tensor.stride())}")


def check_last_dim(argument: str, tensor: Tensor) -> None:
    """Refuse a tensor whose last dimension has gaps."""
    if tensor.stride(-1) != 1:
        raise refuse(argument, "contiguous in its last dimension", f"strides {list(tensor.stride())}")


def check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise refuse(argument, "one of " + ", ".join(choices), repr(value))


FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def check_logit_options(softcap: float | None, sinks: Tensor | None, heads: int, device: torch.device) -> None:
    """Refuse a soft-cap that caps nothing, and sinks that are not one logit per query head."""
    if softcap is not None and not softcap > 0:
        raise refuse("softcap", "positive", softcap)
    if sinks is not None:
        check_tensor("sinks", sinks, (heads,), (torch.float32, *HALVES), device)
        check_contiguous("sinks", sinks)


def check_scales(key_scale: Tensor | None, value_scale: Tensor | None, device: torch.device) -> None:
    """Refuse scales of a quantised cache that are not one float32 each."""
    for name, tensor in (("key_scale", key_scale), ("value_scale", value_scale)):
        if tensor is not None:
            check_tensor(name, tensor.reshape(-1), (1,), (torch.float32,), device)


def check_cache(key_cache: Tensor, value_cache: Tensor, num_kv_heads: int, head_dim: int, query: Tensor) -> None:
    """Refuse a paged cache whose two halves, dtype or dimensions do not fit the query."""
    dtypes = (query.dtype, *FP8)
    check_tensor("key_cache", key_cache, (None, None, num_kv_heads, head_dim), dtypes, query.device)
    check_tensor("value_cache", value_cache, key_cache.shape, (key_cache.dtype,), query.device)
    check_last_dim("key_cache", key_cache)
    check_last_dim("value_cache", value_cache)
