"""What the attention kernels share: addresses of paged tiles, the soft-cap, and the sum of parts."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # kernels compute exp(x) as exp2(LOG2E * x)


@triton.jit
def block_number(block_table_row, position, mask, block_size, BLOCK_SIZE: tl.constexpr):
    """Physical block of each position; `BLOCK_SIZE` is 0 if the block size is not a power of two.

    A power of two is compiled in: dividing by it is a shift, by a number known only at run time many instructions.
    """
    if BLOCK_SIZE > 0:
        return tl.load(block_table_row + position // BLOCK_SIZE, mask=mask, other=0)
    return tl.load(block_table_row + position // block_size, mask=mask, other=0)


@triton.jit
def place_in_block(position, block_size, BLOCK_SIZE: tl.constexpr):
    """Place of each position in its block."""
    if BLOCK_SIZE > 0:
        return position % BLOCK_SIZE
    return position % block_size


@triton.jit
def token_offset(block, place, stride_block, stride_place):
    """Distance of each token's row from the head's first one, in elements: int64, for a cache; a block is short."""
    return block.to(tl.int64) * stride_block + place * stride_place


@triton.jit
def load_tile(base, offset, mask, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Rows of a cache, ``[keys, DIM]``, at `offset` (``[keys]``, int64); 0 where masked and beyond the head dimension.

    What is masked is no text and may hold NaN, which no weight of 0 would silence: it has to become 0 here.
    """
    dim = tl.arange(0, DIM)
    pointers = base + offset[:, None] + dim[None, :]
    return tl.load(pointers, mask=mask[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def capped(logits, softcap, SOFTCAP: tl.constexpr):
    """``softcap * tanh(logits / softcap)``, everything in log2 units."""
    if SOFTCAP:
        # By exp2, as the weights: where it overflows or vanishes, this is plus or minus the soft-cap, and never NaN.
        return softcap * (1.0 - 2.0 / (tl.exp2(logits * (2.0 * LOG2E / softcap)) + 1.0))
    return logits


@triton.jit
def merge_parts(partial_out, partial_stats, first_slot, parts, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum all parts of a request's head, in their order, whichever program came last: another order rounds otherwise.

    `partial_out` is ``[slots, DIM, COLUMNS]``, `partial_stats` ``[slots, 2, COLUMNS]``: references and sums. A part
    that had to take its maximum has another reference, so all are brought to the largest. ``.cg`` reads past the
    multiprocessor's own cache, which does not see what others write.
    """
    dim = tl.arange(0, DIM)[:, None]
    column = tl.arange(0, COLUMNS)
    acc = tl.zeros([DIM, COLUMNS], tl.float32)
    sums = tl.zeros([COLUMNS], tl.float32)
    reference = tl.full([COLUMNS], float("-inf"), tl.float32)
    # Several parts' loads in flight, as many as registers hold.
    AT_ONCE: tl.constexpr = 4 if DIM * COLUMNS <= 4096 else 1
    for first in range(0, parts, AT_ONCE):
        for ahead in tl.static_range(AT_ONCE):
            there = first + ahead < parts
            slot = (first_slot + tl.minimum(first + ahead, parts - 1)).to(tl.int64)
            part_reference = tl.load(partial_stats + slot * 2 * COLUMNS + column, cache_modifier=".cg")
            part_sums = tl.load(partial_stats + (slot * 2 + 1) * COLUMNS + column, cache_modifier=".cg")
            part_acc = tl.load(
                partial_out + slot * DIM * COLUMNS + dim * COLUMNS + column[None, :], cache_modifier=".cg"
            )
            joint = tl.maximum(reference, part_reference)
            before = tl.exp2(reference - joint)
            scale = tl.where(there, tl.exp2(part_reference - joint), 0.0)
            acc = acc * before[None, :] + part_acc * scale[None, :]
            sums = sums * before + part_sums * scale
            reference = joint
    return acc, sums, reference
