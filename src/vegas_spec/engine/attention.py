"""Attention over a request's cached keys and values, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AttentionParams:
    """What a layer's attention computes beside the product: passed by the model at every call.

    ``softmax(softcap * tanh(scale * q k / softcap))`` over the visible keys, with ``exp(sink[h])`` added to the
    denominator where the model has sinks.
    """

    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: Tensor | None


def visible_keys(
    first_row: int, rows: int, first_key: int, keys: int, window: int | None, device: torch.device
) -> Tensor:
    """Which keys each row may see: causal, and within the window. Bool, shape ``[rows, keys]``."""
    row = torch.arange(first_row, first_row + rows, device=device)[:, None]
    key = torch.arange(first_key, first_key + keys, device=device)
    visible = key <= row
    return visible if window is None else visible & (key > row - window)


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, params: AttentionParams) -> Tensor:
    """Grouped-query attention of one request.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, rows, head_dim]``.
    key, value : Tensor
        Shape ``[num_kv_heads, keys, head_dim]``.
    visible : Tensor or None
        Bool, shape ``[rows, keys]``; None if every row sees every key.

    Returns
    -------
    Tensor
        Shape ``[rows, num_query_heads, head_dim]``, of the query's dtype.

    """
    heads, rows, dim = query.shape
    groups = heads // key.shape[0]
    if params.softcap is not None or params.sinks is not None:
        return _attend_explicitly(query, key, value, visible, params)
    mask = None
    if visible is not None:
        mask = torch.zeros(visible.shape, dtype=query.dtype, device=query.device).masked_fill_(~visible, -torch.inf)
    if rows * groups <= 128:
        # Few rows: the heads of a group become rows of one matrix, and each KV head is read once for all of them.
        query = query.reshape(1, key.shape[0], groups * rows, dim)
        mask = mask if mask is None else mask.repeat(groups, 1)
        out = F.scaled_dot_product_attention(query, key[None], value[None], attn_mask=mask, scale=params.scale)
        out = out.view(heads, rows, dim)
    else:
        out = F.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=mask, scale=params.scale, enable_gqa=groups > 1
        )[0]
    return out.transpose(0, 1)


def _attend_explicitly(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, params: AttentionParams
) -> Tensor:
    """Do as `attend` does, with a soft-cap or sinks, which torch's fused attention does not know."""
    heads, rows, _ = query.shape
    logits = query_key_logits(query, key, params.scale).float()
    if params.softcap is not None:
        logits = params.softcap * torch.tanh(logits / params.softcap)
    if visible is not None:
        logits = logits.masked_fill(~visible[:, None], -torch.inf)
    if params.sinks is not None:
        logits = torch.cat([logits, params.sinks.float()[None, :, None].expand(rows, heads, 1)], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., : key.shape[1]].to(value.dtype)
    grouped = weights.transpose(0, 1).reshape(key.shape[0], -1, key.shape[1])
    return torch.matmul(grouped, value).view(heads, rows, -1).transpose(0, 1)


def query_key_logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products before softmax and soft-cap, shape ``[rows, num_query_heads, keys]``; shapes as in `attend`."""
    heads, rows, dim = query.shape
    grouped = (query * scale).reshape(key.shape[0], -1, dim)
    logits = torch.matmul(grouped, key.transpose(-1, -2))
    return logits.view(heads, rows, key.shape[1]).transpose(0, 1)
