"""Random paged batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LAYOUTS = ("separate", "joint_nhd", "joint_hnd")


@dataclass
class Batch:
    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor


def make_batch(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    layout: str = "separate",
    device: torch.device | str = "cpu",
    seed: int = 0,
    sharpness: float = 3.0,
) -> Batch:
    """A batch whose pages lie in random order, with NaN in every slot that no request owns."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // block_size) for length in seq_lens]
    blocks = sum(pages) + 3
    order = torch.randperm(blocks, generator=generator).int()
    table = torch.full((len(seq_lens), max([*pages, 1]) + 1), 10**6, dtype=torch.int32)
    used = torch.zeros(blocks, block_size, dtype=torch.bool)
    start = 0
    for row, (count, length) in enumerate(zip(pages, seq_lens, strict=True)):
        table[row, :count] = order[start : start + count]
        position = torch.arange(length)
        used[table[row, position // block_size].long(), position % block_size] = True
        start += count

    def cache() -> Tensor:
        values = torch.randn(blocks, block_size, kv_heads, head_dim, generator=generator)
        return values.masked_fill(~used[..., None, None], torch.nan).to(cache_dtype or dtype)

    key, value = cache(), cache()
    if layout == "joint_nhd":
        joint = torch.cat([key, value], -1).to(device)
        key, value = joint.split(head_dim, -1)
    elif layout == "joint_hnd":
        joint = torch.cat([key, value], -1).transpose(1, 2).contiguous().to(device)
        key, value = joint.transpose(1, 2).split(head_dim, -1)
    rows = sum(query_lens)
    query = torch.randn(rows, heads, head_dim, generator=generator) * sharpness
    bounds = torch.tensor([0, *query_lens]).cumsum(0).int()
    return Batch(
        query.to(device, dtype),
        key.to(device),
        value.to(device),
        table.to(device),
        bounds.to(device),
        torch.tensor(seq_lens, dtype=torch.int32, device=device),
    )
