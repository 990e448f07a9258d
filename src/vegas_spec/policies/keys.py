"""Cached keys as a policy sees them, whichever way an engine keeps them.

Two engines keep them in two ways: the embedded one as a matrix per request and KV head, vLLM in blocks that a table
lists. A policy is written once, against `KeyView`: a *place* is a number that a token has in the whole cache, a *page*
the 16 tokens whose places share ``place // 16``, and pages of a request are numbered by position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAGE_SIZE = 16
"""Tokens of a page: what quest bounds together, and what divides every block size that vLLM has."""

KEYS_AT_ONCE = 16384
"""Keys that are copied out of a paged cache at once, which bounds the copy's memory. Chosen by hand."""


class KeyView(ABC):
    """One layer's keys, and where those of a batch's requests stand. Nothing here waits for the device."""

    num_pages: int
    """Pages of the whole cache."""

    @property
    @abstractmethod
    def page_table(self) -> Tensor:
        """Numbers of each request's pages in the cache, int64, shape ``[batch, pages per request]``.

        Past a request's end they mean nothing, and may be any.
        """

    @abstractmethod
    def pages(self, numbers: Tensor) -> Tensor:
        """Keys of pages, by their numbers in the cache: ``[..., 16, num_kv_heads, head_dim]``."""

    @abstractmethod
    def read(self, request: int, most: int) -> Iterator[Tensor]:
        """Keys of a request of the batch from position 0 on, ``[num_kv_heads, n, head_dim]``, `most` in all."""


@dataclass(frozen=True)
class DenseKeys(KeyView):
    """Keys of the embedded engine: ``[slots, num_kv_heads, length, head_dim]``, place ``slot * length + position``."""

    keys: Tensor
    slots: Sequence[int]

    @property
    def num_pages(self) -> int:  # type: ignore[override]
        """See `KeyView`."""
        return self.keys.shape[0] * self._pages_per_slot

    @property
    def _pages_per_slot(self) -> int:
        return self.keys.shape[2] // PAGE_SIZE

    @property
    def page_table(self) -> Tensor:
        """See `KeyView`."""
        own = torch.arange(self._pages_per_slot, device=self.keys.device)
        return torch.tensor(self.slots, device=self.keys.device)[:, None] * self._pages_per_slot + own

    def pages(self, numbers: Tensor) -> Tensor:
        """See `KeyView`."""
        slots, heads, length, dim = self.keys.shape
        paged = self.keys.view(slots, heads, length // PAGE_SIZE, PAGE_SIZE, dim)
        found: Tensor = paged[numbers // self._pages_per_slot, :, numbers % self._pages_per_slot]
        return found.transpose(-3, -2)

    def read(self, request: int, most: int) -> Iterator[Tensor]:
        """See `KeyView`; a view, in one piece."""
        yield self.keys[self.slots[request], :, :most]


@dataclass(frozen=True)
class PagedKeys(KeyView):
    """Keys of vLLM.

    Attributes
    ----------
    cache : Tensor
        Shape ``[blocks, block_size, num_kv_heads, head_dim]``, the block size a multiple of 16; place ``block *
        block_size + offset``.
    block_table : Tensor
        Int32, shape ``[batch, blocks per request]``.
    dtype : torch.dtype
        Of what is read.
    scale : Tensor or None
        What stored keys are multiplied by, one element.

    """

    cache: Tensor
    block_table: Tensor
    dtype: torch.dtype
    scale: Tensor | None = None

    @property
    def num_pages(self) -> int:  # type: ignore[override]
        """See `KeyView`."""
        return self.cache.shape[0] * self._pages_per_block

    @property
    def _pages_per_block(self) -> int:
        return self.cache.shape[1] // PAGE_SIZE

    @property
    def page_table(self) -> Tensor:
        """See `KeyView`."""
        page = torch.arange(self.block_table.shape[1] * self._pages_per_block, device=self.cache.device)
        block = self.block_table[:, page // self._pages_per_block].long()
        # A table's unused end may hold anything.
        return (block * self._pages_per_block + page % self._pages_per_block).clamp(0, self.num_pages - 1)

    def pages(self, numbers: Tensor) -> Tensor:
        """See `KeyView`."""
        first = numbers % self._pages_per_block * PAGE_SIZE
        offset = first[..., None] + torch.arange(PAGE_SIZE, device=self.cache.device)
        return self._real(self.cache[(numbers // self._pages_per_block)[..., None], offset])

    def read(self, request: int, most: int) -> Iterator[Tensor]:
        """See `KeyView`; copies of some keys at a time."""
        block_size = self.cache.shape[1]
        most = min(most, self.block_table.shape[1] * block_size)
        blocks = self.block_table[request, : -(-most // block_size)]
        for some in torch.split(blocks, max(KEYS_AT_ONCE // block_size, 1)):
            keys = self.cache[some.long()].flatten(0, 1)[:most].transpose(0, 1)
            most -= keys.shape[1]
            yield self._real(keys)

    def _real(self, keys: Tensor) -> Tensor:
        keys = keys.to(self.dtype)
        return keys if self.scale is None else keys * self.scale.to(self.dtype)
