"""Launch configurations by shape: measured once, looked up at run time, never searched while serving."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import triton
from triton.runtime import driver

Tuning = TypeVar("Tuning", "VerifyTuning", "SparseTuning")

MAX_COLUMNS = 128
"""Query rows times heads per KV head that one product takes; more would not fit the registers."""

HOPPER_SHARED_MEMORY = 232_448
"""Bytes, 227 KiB, that one program may have from compute capability 9.0 on (CUDA's programming guide)."""

CPU_MULTIPROCESSORS = 4
"""Where no GPU says how many there are, as in Triton's interpreter: enough to cut work into parts. Chosen by hand."""


@functools.cache
def launch_options(device: torch.device) -> dict[str, bool]:
    """Options of a launch: from Hopper on, a kernel is set up while the one ahead of it ends, and then waits for it.

    Multiply-adds are asked for: from Triton 3.10 on they are not the default.
    """
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"enable_fp_fusion": True, "EARLY": early, **({"launch_pdl": True} if early else {})}


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

    tile: int
    stages: int
    warps: int
    programs_per_multiprocessor: int


# Measured on an H200 with torch 2.11 and Triton 3.6, 2026-11-29 (docs/kernels.md), fastest first: wide heads are those
# of 128 dimensions, narrow ones gpt-oss's of 64. What does not fit a device's shared memory is passed over; the small
# ones are for devices that have less than an H200, chosen by hand so that they fit, and not measured there.
_VERIFY_WIDE = (VerifyTuning(128, 3, 8, 1), VerifyTuning(64, 3, 4, 1), VerifyTuning(64, 2, 4, 1))
_VERIFY_NARROW: tuple[VerifyTuning, ...] = (VerifyTuning(64, 4, 4, 2),)
_VERIFY_SMALL = (VerifyTuning(32, 2, 4, 1), VerifyTuning(16, 2, 4, 1))


def _first_that_fits(tunings: Sequence[Tuning], columns: int, head_dim: int, shared_memory: int) -> Tuning:
    """The first configuration that a multiprocessor with `shared_memory` bytes has room for, or the last of all."""
    dim, columns = triton.next_power_of_2(head_dim), triton.next_power_of_2(max(columns, 16))
    for tuning in tunings:
        # The tiles in flight, the query, a tile's weights, and what reductions take.
        needed = 2 * (tuning.stages * 2 * tuning.tile * dim + dim * columns + tuning.tile * columns) + 2048
        if needed * tuning.programs_per_multiprocessor <= shared_memory:
            return tuning
    return tunings[-1]


def verify_tuning(columns: int, head_dim: int, shared_memory: int) -> VerifyTuning:
    """Configuration for `columns` query rows per KV head on a multiprocessor with `shared_memory` bytes."""
    preferred = _VERIFY_NARROW if head_dim <= 64 else _VERIFY_WIDE
    return _first_that_fits(preferred + _VERIFY_SMALL, columns, head_dim, shared_memory)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have; for a CPU those of Hopper."""
    if device.type != "cuda":
        return HOPPER_SHARED_MEMORY
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the device, among which work is cut up; for a CPU `CPU_MULTIPROCESSORS`."""
    if device.type != "cuda":
        return CPU_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True)
class SelectTuning:
    """Launch configuration of `select_kv`: one, for all shapes. Chosen by hand; what it takes on an H200 is in
    docs/kernels.md.

    Attributes
    ----------
    chunk, warps : int
        Positions per step and warps of a program.
    rank_chunk, rank_warps : int
        The same of the kernel that, where heads are summed or scores flow, says what positions are ranked by.
    programs_per_multiprocessor : int
        There, lists are cut into parts until there are about as many programs.

    """

    chunk: int = 4096
    warps: int = 16
    rank_chunk: int = 2048
    rank_warps: int = 8
    programs_per_multiprocessor: int = 2

    def programs(self, device: torch.device) -> int:
        """Programs that a device is filled with."""
        return self.programs_per_multiprocessor * multiprocessors(device)


SELECT = SelectTuning()


@dataclass(frozen=True)
class SparseTuning:
    """Launch configuration of `sparse_attention`.

    Attributes
    ----------
    tile, stages, warps : int
        As in `VerifyTuning`.
    programs_per_multiprocessor : int
        Programs that share a multiprocessor; lists are cut until there are about as many.

    """

    tile: int
    stages: int
    warps: int
    programs_per_multiprocessor: int


# Measured as above: one program of large tiles per multiprocessor, or two of small ones where there are more than 1.5
# lists for each. The smaller ones are for devices with less shared memory, and not measured there.
_SPARSE = tuple(SparseTuning(*sizes, 4, 1) for sizes in ((128, 3), (64, 3), (64, 2), (32, 2), (16, 2)))
_SPARSE_MANY = SparseTuning(64, 3, 4, 2)


def sparse_tuning(columns: int, head_dim: int, shared_memory: int, pairs: int, multiprocessors: int) -> SparseTuning:
    """Configuration for the lists of `pairs` KV heads, each read by `columns` query heads."""
    many = (_SPARSE_MANY,) if 2 * pairs > 3 * multiprocessors else ()
    return _first_that_fits(many + _SPARSE, columns, head_dim, shared_memory)


def sparse_splits(pairs: int, multiprocessors: int, tuning: SparseTuning) -> int:
    """Into how many parts the list of each of `pairs` requests' KV heads is cut."""
    return max(1, multiprocessors * tuning.programs_per_multiprocessor // max(pairs, 1))
