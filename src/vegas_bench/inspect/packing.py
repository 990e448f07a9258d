"""Selections, small enough for a page: bit sets, each as what changed since the one before, deflated."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

UNKNOWN = 255
"""Byte of a share that was not measured; 0 to 254 are shares of 0 to 1."""


def members(positions: Tensor, length: int) -> Tensor:
    """Turn lists of positions into sets.

    Parameters
    ----------
    positions : Tensor
        Integer, shape ``[..., k]``; negative ones fill up.
    length : int
        Positions are below it.

    Returns
    -------
    Tensor
        Bool, shape ``[..., length]``.

    """
    where = positions.long()
    found = torch.zeros(*where.shape[:-1], length + 1, dtype=torch.bool)
    return found.scatter_(-1, where.masked_fill(where < 0, length), True)[..., :length]


def pack_sets(iterations: Sequence[Tensor], length: int) -> tuple[str, list[int]]:
    """Pack the sets of several iterations.

    Parameters
    ----------
    iterations : sequence of Tensor
        Selected positions of each, shape ``[layers, heads, k]``, as `members` takes them.
    length : int
        Bits of a set.

    Returns
    -------
    str, list of int
        Base64 of zlib over ``[iterations, layers, heads, ceil(length / 8)]`` bytes, bit ``i % 8`` of byte ``i // 8``
        for position ``i``, each iteration exclusive-or the one before; and its characters up to each iteration's end.

    """
    packer = zlib.compressobj(6)
    chunks: list[bytes] = []
    sizes, size = [], 0
    previous: np.ndarray | None = None
    for positions in iterations:
        bits = np.packbits(members(positions, length).numpy(), axis=-1, bitorder="little")
        changed = bits if previous is None else bits ^ previous
        chunks.append(packer.compress(changed.tobytes()) + packer.flush(zlib.Z_SYNC_FLUSH))
        size += len(chunks[-1])
        sizes.append(4 * math.ceil(size / 3))
        previous = bits
    chunks.append(packer.flush())
    return base64.b64encode(b"".join(chunks)).decode("ascii"), sizes


def pack_shares(shares: Tensor) -> str:
    """Base64 of one byte per share, `UNKNOWN` for NaN."""
    known = torch.where(shares.isnan(), torch.tensor(UNKNOWN / 254), shares.float().clamp(0, 1))
    return base64.b64encode((known * 254).round().to(torch.uint8).numpy().tobytes()).decode("ascii")
