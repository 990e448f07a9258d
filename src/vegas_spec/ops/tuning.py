"""Launch configurations by shape: measured once, looked up at run time, never searched while serving."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

MAX_COLUMNS = 128
"""Query rows times heads per KV head that one product takes; more would not fit the registers."""


@functools.cache
def early_launch(device: torch.device) -> dict[str, bool]:
    """Launch options: from Hopper on, a kernel is set up while the one ahead of it ends, and then waits for it."""
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@dataclass(frozen=True)
class VerifyTuning:
    """Launch configuration of `verify_attention`.

    Attributes
    ----------
    tile : int
        Keys per step of a program.
    stages : int
        Tiles in flight, the one being used included.
    warps : int
        Warps per program.
    programs_per_multiprocessor : int
        Programs that share a multiprocessor, which decides into how many parts the work is cut.

    """

    tile: int = 128
    stages: int = 3
    warps: int = 8
    programs_per_multiprocessor: int = 1


def verify_tuning(columns: int, head_dim: int) -> VerifyTuning:
    """Configuration for `columns` query rows per KV head."""
    return VerifyTuning()


@dataclass(frozen=True)
class SelectTuning:
    """Launch configuration of `select_kv`.

    Attributes
    ----------
    chunk, warps : int
        Positions per step and warps of a program.
    sharers : int
        Programs that take turns over the parts of one program of the verification.
    merge_chunk : int
        Positions per step of a program that sums heads.

    """

    chunk: int = 4096
    warps: int = 16
    sharers: int = 1
    merge_chunk: int = 1024


SELECT = SelectTuning()


@dataclass(frozen=True)
class SparseTuning:
    """Launch configuration of `sparse_attention`.

    Attributes
    ----------
    tile, stages, warps : int
        As in `VerifyTuning`.
    programs_per_multiprocessor : int
        How many programs a batch is cut into at least, per multiprocessor.

    """

    tile: int = 128
    stages: int = 3
    warps: int = 4
    programs_per_multiprocessor: int = 1


def sparse_tuning(head_dim: int) -> SparseTuning:
    """Configuration for a head dimension."""
    return SparseTuning()


def sparse_splits(pairs: int, multiprocessors: int, tuning: SparseTuning) -> int:
    """Into how many parts the list of each of `pairs` requests' KV heads is cut."""
    return max(1, multiprocessors * tuning.programs_per_multiprocessor // pairs)
