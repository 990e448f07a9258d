"""The key-value cache of a batch: preallocated, one region per request and layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerSpec:
    """What one attention layer looks like.

    Attributes
    ----------
    sliding_window : int or None
        Tokens that a row sees, itself included; None for full attention.

    """

    index: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None


BLOCK_SIZE = 16
"""A request's region is a whole number of blocks of so many tokens, so that kernels can read it as pages.
16 as vLLM's blocks have unless told otherwise."""


class KVCache:
    """Keys and values of up to `slots` requests of up to `length` tokens.

    Per layer, keys and values have the shape ``[slots, num_kv_heads, length, head_dim]``: head-major, so that one
    request's head is one contiguous matrix. Memory is reserved here and becomes resident as tokens are written.
    """

    def __init__(
        self, layers: Sequence[LayerSpec], slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = layers
        full = [layer.index for layer in layers if layer.sliding_window is None]
        self.full_layers = {index: place for place, index in enumerate(full)}
        """Layers with full attention: place among them by index."""
        self.length = length = -(-length // BLOCK_SIZE) * BLOCK_SIZE
        shapes = [(slots, layer.num_kv_heads, length, layer.head_dim) for layer in layers]
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]

    def write(self, layer: int, slot: int, start: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values, shape ``[num_kv_heads, tokens, head_dim]``, at positions from `start` on."""
        stop = start + key.shape[1]
        self.keys[layer][slot, :, start:stop] = key
        self.values[layer][slot, :, start:stop] = value

    def read(self, layer: int, slot: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and values of positions ``[start, stop)``, shape ``[num_kv_heads, tokens, head_dim]``."""
        return self.keys[layer][slot, :, start:stop], self.values[layer][slot, :, start:stop]

    def gather(self, layer: int, slot: int, positions: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copy the keys and values of `positions`, int64 of shape ``[num_kv_heads or 1, k]``, and ``[start, stop)``."""
        keys, values = self.keys[layer][slot], self.values[layer][slot]
        heads, length, dim = keys.shape
        recent = torch.arange(start, stop, device=keys.device)
        index = torch.cat([positions, recent.expand(positions.shape[0], -1)], dim=1)
        # As rows of one matrix: to copy rows is faster than to index two dimensions.
        rows = (index + torch.arange(heads, device=keys.device)[:, None] * length).flatten()
        copies = [entries.view(-1, dim).index_select(0, rows).view(heads, -1, dim) for entries in (keys, values)]
        return copies[0], copies[1]


class DraftCache:
    """The selected entries of one request, gathered once per iteration, followed by the recent ones.

    Per layer with full attention: ``[num_kv_heads, width, head_dim]``, columns ``[0, k)`` selected, then everything
    since the prefix, in order. Draft steps read it from the start, contiguously.
    """

    def __init__(self, cache: KVCache, slot: int, width: int) -> None:
        self._cache = cache
        self._slot = slot
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._filled: dict[int, int] = {}
        for layer in cache.layers:
            if layer.sliding_window is None:
                shape = (layer.num_kv_heads, min(width, cache.length), layer.head_dim)
                self._keys[layer.index] = cache.keys[layer.index].new_empty(shape)
                self._values[layer.index] = cache.values[layer.index].new_empty(shape)

    def gather(self, layer: int, positions: Tensor, start: int, stop: int) -> None:
        """Take the selected positions, int64 of shape ``[num_kv_heads or 1, k]``, and all of ``[start, stop)``."""
        keys, values = self._cache.keys[layer][self._slot], self._cache.values[layer][self._slot]
        count = positions.shape[1]
        for head in range(keys.shape[0]):
            own = positions[min(head, positions.shape[0] - 1)]
            torch.index_select(keys[head], 0, own, out=self._keys[layer][head, :count])
            torch.index_select(values[head], 0, own, out=self._values[layer][head, :count])
        self._filled[layer] = count
        self.append(layer, *self._cache.read(layer, self._slot, start, stop))

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Add recent keys and values, shape ``[num_kv_heads, tokens, head_dim]``."""
        start = self._filled[layer]
        stop = start + key.shape[1]
        self._keys[layer][:, start:stop] = key
        self._values[layer][:, start:stop] = value
        self._filled[layer] = stop

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of what a draft step attends to, shape ``[num_kv_heads, tokens, head_dim]``."""
        filled = self._filled[layer]
        return self._keys[layer][:, :filled], self._values[layer][:, :filled]
