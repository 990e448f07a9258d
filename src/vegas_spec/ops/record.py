"""What a program of the verification starts from, by name, and how it walks on from there.

A program's share is a run of tiles over one or more heads. Its record in `VerifyPlan.programs` says where the share
begins and what a program has to know of that head, so that it waits for memory once before it starts. Kernels read the
fields as ``programs + program * record.LENGTH + record.SHARE``, Python as ``programs[:, record.SHARE.value]``.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

REQUEST = tl.constexpr(0)  # of the share's first head
HEAD = tl.constexpr(1)  # KV head of that request
TILE = tl.constexpr(2)  # first tile, counted from the head's own first one
UNITS = tl.constexpr(3)  # tiles of the whole share; 0 or less: nothing to do
TILES = tl.constexpr(4)  # tiles of each of the request's heads
HEAD_START = tl.constexpr(5)  # tiles of the batch before that head
ROW_START = tl.constexpr(6)  # the request's first query row
QUERY_LEN = tl.constexpr(7)
SEQ_LEN = tl.constexpr(8)
SCORE_OFFSET = tl.constexpr(9)  # where the request's scores begin, or -1
SHARE = tl.constexpr(10)  # tiles per program, the same for all
STEP = tl.constexpr(11)  # not 0: a program's heads are whole and lie so many heads apart; the same for all
LENGTH = tl.constexpr(16)  # 64 bytes: a power of two, so that no record lies across two lines of the cache


@triton.jit
def next_head(request, head, tiles, head_start, step, units, tile_starts, KV_HEADS: tl.constexpr):
    """The request, head, tiles and start of the program's next head, and whether its request is another one.

    Nothing is read while the request stays the same, nor at the end of the share (`units` of 0).
    """
    head_start += tiles
    head += tl.maximum(step, 1)
    moved = (head >= KV_HEADS) & (units > 0)
    if moved:
        request += head // KV_HEADS
        head = head % KV_HEADS
        # A program that skips heads is planned only where no padding row lies between requests.
        if step == 0:
            while tl.load(tile_starts + request + 1) * KV_HEADS <= head_start:  # a padding row
                request += 1
        tiles = tl.load(tile_starts + request + 1) - tl.load(tile_starts + request)
    return request, head, tiles, head_start, moved


@triton.jit
def parts_of_head(head_start, tiles, share, step):
    """The first program that has a part of the head, and how many have one."""
    first = head_start // share
    return first, tl.where(step > 0, 1, (head_start + tiles - 1) // share - first + 1)


@triton.jit
def slot_of_part(program, pair, step):
    """Where scratch has the part that `program` has of ``pair = request * kv_heads + head``; Python runs it as well.

    From one part to the next along the list of tiles, the program or the pair or both go up by one or more: their sum
    is one part's alone. Whole heads are one part each, of which the pair says it all.
    """
    return pair + program * (step == 0)


def slots_of_tiles(programs: Tensor, tile_starts: Tensor, request: int, kv_heads: int) -> Tensor:
    """Slot of the part that each tile of a request's heads belongs to, int64, ``[kv_heads, tiles]``."""
    first, end = (kv_heads * tile_starts[request : request + 2]).tolist()
    program = torch.arange(first, end, device=programs.device).view(kv_heads, -1) // programs[0, SHARE.value]
    pair = request * kv_heads + torch.arange(kv_heads, device=programs.device)[:, None]
    slots: Tensor = slot_of_part.fn(program, pair, programs[0, STEP.value])
    return slots
