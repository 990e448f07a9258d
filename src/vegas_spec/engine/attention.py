"""Attention over a request's cached keys and values, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from vegas_spec.selection import query_key_logits

# Up to so many rows and heads of a group together, reading a KV head once beats attention kernels made for prompts.
# Chosen by hand: more than a verification has, fewer than a piece of prompt.
_FEW_ROWS = 128


@dataclass(frozen=True)
class RowSpan:
    """Consecutive rows of one request within a packed batch.

    Attributes
    ----------
    slot : int
        The request's place in the KV cache.
    start : int
        Position of its first row.
    count : int
        Number of rows.

    """

    slot: int
    start: int
    count: int

    @property
    def stop(self) -> int:
        """Keys that the last row sees."""
        return self.start + self.count


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


class CausalMask:
    """Which keys each of a request's rows may see: those at or before its own position, and within the window.

    Built once for all layers of a step that share it; every form of it is made when it is first asked for.

    Parameters
    ----------
    rows : RowSpan
        The request's rows.
    first_key : int
        Position of the first key that was read; keys go on to the last row's position.
    window : int or None
        Tokens that a row sees, itself included.
    device : torch.device
        Where the attention runs.

    """

    def __init__(self, rows: RowSpan, first_key: int, window: int | None, device: torch.device) -> None:
        self._rows = rows
        self._first_key = first_key
        self._window = window
        self._device = device
        self._biases: dict[tuple[torch.dtype, int], Tensor] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """RowSpan and keys."""
        return self._rows.count, self._rows.stop - self._first_key

    @property
    def hides_nothing(self) -> bool:
        """Whether every row sees every key: a single row, for which no more is read than it sees."""
        return self._rows.count == 1

    @property
    def is_plain(self) -> bool:
        """Whether there is no window that hides a key."""
        return self._window is None or self._window >= self._rows.stop

    @cached_property
    def visible(self) -> Tensor:
        """Bool, shape ``[rows, keys]``."""
        row = torch.arange(self._rows.start, self._rows.stop, device=self._device)[:, None]
        key = torch.arange(self._first_key, self._rows.stop, device=self._device)
        visible = key <= row
        return visible if self._window is None else visible & (key > row - self._window)

    def bias(self, dtype: torch.dtype, group_size: int) -> Tensor:
        """Zero where visible, else ``-inf``; shape ``[group_size * rows, keys]``, the rows once for each head."""
        if (dtype, group_size) not in self._biases:
            bias = torch.zeros(self.shape, dtype=dtype, device=self._device).masked_fill_(~self.visible, -torch.inf)
            self._biases[dtype, group_size] = bias.repeat(group_size, 1)
        return self._biases[dtype, group_size]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: CausalMask | None, params: AttentionParams) -> Tensor:
    """Grouped-query attention of one request.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, rows, head_dim]``.
    key, value : Tensor
        Shape ``[num_kv_heads, keys, head_dim]``.
    mask : CausalMask or None
        None if every row sees every key.

    Returns
    -------
    Tensor
        Shape ``[rows, num_query_heads, head_dim]``, of the query's dtype.

    """
    heads, rows, dim = query.shape
    group_size = heads // key.shape[0]
    if mask is not None and mask.hides_nothing:
        mask = None
    if params.softcap is not None or params.sinks is not None:
        return _attend_explicitly(query, key, value, mask, params)
    if rows * group_size <= _FEW_ROWS:
        # The heads of a group become rows of one matrix, so that each KV head is read once for all of them.
        query = query.reshape(1, key.shape[0], group_size * rows, dim)
        bias = None if mask is None else mask.bias(query.dtype, group_size)
        out = F.scaled_dot_product_attention(query, key[None], value[None], attn_mask=bias, scale=params.scale)
        return out.view(heads, rows, dim).transpose(0, 1)
    if mask is not None and mask.is_plain and query.is_cuda:
        # Flash attention knows this mask without its being written out.
        bias = causal_lower_right(*mask.shape)
    else:
        bias = None if mask is None else mask.bias(query.dtype, 1)
    out = F.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=bias, scale=params.scale, enable_gqa=group_size > 1
    )
    return out[0].transpose(0, 1)


def _attend_explicitly(
    query: Tensor, key: Tensor, value: Tensor, mask: CausalMask | None, params: AttentionParams
) -> Tensor:
    """Do as `attend` does, with a soft-cap or sinks, which torch's fused attention does not know."""
    heads, rows, _ = query.shape
    logits = query_key_logits(query, key, params.scale).float()
    if params.softcap is not None:
        logits = params.softcap * torch.tanh(logits / params.softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask.visible[:, None], -torch.inf)
    if params.sinks is not None:
        logits = torch.cat([logits, params.sinks.float()[None, :, None].expand(rows, heads, 1)], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., : key.shape[1]].to(value.dtype)
    grouped = weights.transpose(0, 1).reshape(key.shape[0], -1, key.shape[1])
    return torch.matmul(grouped, value).view(heads, rows, -1).transpose(0, 1)
