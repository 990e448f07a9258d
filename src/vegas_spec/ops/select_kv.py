"""The best-scored cache slots of every request, in one pass over the scores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vegas_spec.config import Score
from vegas_spec.ops.checks import check_choice, check_contiguous, check_last_dim, check_tensor, refuse
from vegas_spec.ops.levels import FLOOR, LEVELS, STEPS, to_levels
from vegas_spec.ops.plan import MERGED_PARTS, VerifyPlan
from vegas_spec.ops.tuning import SELECT

FIRST_POSITIONS = 16
"""Positions at the start that a request without scores keeps, beside the latest ones (StreamingLLM's sinks)."""


def select_kv(
    plan: VerifyPlan,
    counts: Tensor,
    block_table: Tensor,
    block_size: int,
    *,
    slots: Tensor,
    score: Score,
    positions: Tensor | None = None,
    tail: int = 0,
) -> Tensor:
    """Choose each request's ``counts[b]`` best positions of ``[0, prefix_lens[b])`` and say where they lie in the cache.

    With ``P[b, g]`` the chosen positions in ascending order, and ``slot(b, i) = block_table[b, i // block_size] *
    block_size + i % block_size``,

    - ``slots[b, g, j] = slot(b, P[b, g][j])`` for ``j < counts[b]``
    - ``slots[b, g, counts[b] + j] = slot(b, prefix_lens[b] + j)`` for ``j < tail``

    so that the draft's step at length ``s`` reads the first ``counts[b] + s - prefix_lens[b]`` of them. The levels that
    `verify_attention` has just stored decide; ties go to the larger position. With granularity ``layer`` the heads'
    scores are summed first. A request for which ``plan.score_offsets[b] < 0`` takes its first 16 positions and its
    latest ones.

    Parameters
    ----------
    plan : VerifyPlan
        Prepared in this step; `verify_attention` has scored with it.
    counts : Tensor
        Positions to choose, int32, shape ``[batch]``; what exceeds the prefix is cut off. Read on the device.
    block_table : Tensor
        int32, shape ``[batch, blocks per request]``.
    block_size : int
        Tokens per block.
    slots : Tensor
        Written; int32, contiguous, shape ``[batch, groups, width]``, groups being KV heads or 1. Entries beyond
        ``counts[b] + tail``, and those of padding rows, are left alone; what does not fit the width is not written.
    score : {"weight", "logit"}
        What `verify_attention` stored.
    positions : Tensor, optional
        Written; like `slots`, with positions instead of slots.
    tail : int
        Positions after the prefix to append: ``2 * gamma + 1`` reach to the end of the draft. Slots of blocks that the
        block table does not have become 0.

    Returns
    -------
    Tensor
        `slots`.

    Notes
    -----
    Safe in CUDA graphs, deterministic, allocates nothing. On a CPU the plain-torch `reference` runs.

    """
    batch, device = counts.shape[0], plan.levels.device
    if batch > plan.max_requests:
        raise refuse("counts", f"of at most {plan.max_requests} requests", batch)
    if plan.score_capacity == 0:
        raise refuse("plan", "one with score_capacity", 0)
    check_choice("score", score, tuple(STEPS))
    check_tensor("counts", counts, (batch,), (torch.int32,), device)
    check_contiguous("counts", counts)
    check_tensor("block_table", block_table, (batch, None), (torch.int32,), device)
    check_last_dim("block_table", block_table)
    for name, tensor in (("slots", slots), ("positions", positions)):
        if tensor is not None:
            check_tensor(
                name, tensor, (batch, plan.groups, None if name == "slots" else slots.shape[2]), (torch.int32,), device
            )
            check_contiguous(name, tensor)
    if tail < 0 or tail > slots.shape[2]:
        raise refuse("tail", "from 0 to the width of slots", tail)
    torch.ops.vegas_spec.select_kv(
        plan.levels, plan.histogram, plan.programs, plan.tile_starts, plan.prefix_lens, plan.score_offsets,
        counts, block_table, slots, positions, block_size, tail, score, plan.tuning.tile,
    )  # fmt: skip
    return slots


def launch(
    levels: Tensor,
    histogram: Tensor,
    programs: Tensor,
    tile_starts: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
    tile: int,
) -> None:
    """Run the Triton kernels."""
    batch, groups, width = slots.shape
    heads = levels.shape[0]
    together = groups != heads
    if together:
        _merge_heads_kernel[(batch * MERGED_PARTS,)](
            levels, histogram, prefix_lens, score_offsets, levels.shape[1],
            HEADS=heads, CHUNK=SELECT.merge_chunk, PARTS=MERGED_PARTS, WEIGHT=score == "weight",
            STEPS=STEPS[score], FLOOR=FLOOR[score], LEVELS=LEVELS, num_warps=4,  # type: ignore[index]
        )  # fmt: skip
    grid = batch * MERGED_PARTS if together else programs.shape[0] * SELECT.sharers
    _select_kernel[(grid,)](
        slots, slots if positions is None else positions, levels, histogram, programs, tile_starts, prefix_lens,
        score_offsets, counts, block_table, block_table.stride(0), block_table.shape[1], levels.shape[1], width, tail,
        block_size,
        GROUPS=groups, TILE=tile, RECORD=programs.shape[1], SHARERS=SELECT.sharers,
        PARTS=MERGED_PARTS if together else 0, LEVELS=LEVELS, CHUNK=SELECT.chunk, MERGED_CHUNK=SELECT.merge_chunk,
        POSITIONS=positions is not None, FIRST=FIRST_POSITIONS,
        BLOCK_SIZE=block_size if block_size & (block_size - 1) == 0 else 0,
        TAIL=triton.next_power_of_2(max(tail, 1)), num_warps=SELECT.warps,
    )  # fmt: skip


def reference(
    levels: Tensor,
    histogram: Tensor,
    programs: Tensor,
    tile_starts: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
    tile: int,
) -> None:
    """Do the same in plain torch, one request after another."""
    batch, groups, width = slots.shape
    for request in range(batch):
        prefix, offset = int(prefix_lens[request]), int(score_offsets[request])
        if prefix == 0:
            continue
        count = min(int(counts[request]), prefix)
        if offset < 0:
            first = min(FIRST_POSITIONS, count)
            chosen = torch.cat([torch.arange(first), torch.arange(prefix - count + first, prefix)]).expand(groups, -1)
        else:
            level = levels[:, offset : offset + prefix].int()
            if groups != level.shape[0]:
                level = merge_heads(level, score)
            # Level and position in one number: the larger position wins a tie.
            order = level.long() * 2**32 + torch.arange(prefix, device=level.device)
            chosen = order.topk(count, dim=1).indices.sort(1).values.cpu()
        chosen = torch.cat([chosen, torch.arange(prefix, prefix + tail).expand(groups, -1)], 1)[:, :width]
        block = chosen // block_size
        known = block < block_table.shape[1]
        table = block_table[request].cpu()
        slot = table[block.clamp(max=len(table) - 1)] * block_size + chosen % block_size
        slots[request, :, : chosen.shape[1]] = slot.masked_fill(~known, 0).int().to(slots.device)
        if positions is not None:
            positions[request, :, : chosen.shape[1]] = chosen.int().to(slots.device)


def merge_heads(level: Tensor, score: str) -> Tensor:
    """One score for all KV heads: levels of ``[heads, keys]`` to ``[1, keys]``, summed as what they stand for."""
    if score == "logit":
        return level.sum(0, keepdim=True) // level.shape[0]
    weights = (level / STEPS["weight"] + FLOOR["weight"]).exp2()
    return to_levels(weights.sum(0, keepdim=True).log2(), "weight").int()


_op = torch.library.custom_op(
    "vegas_spec::select_kv", launch, mutates_args=("levels", "histogram", "slots", "positions"), device_types="cuda"
)
_op.register_kernel("cpu")(reference)
_op.register_fake(lambda *_: None)


@triton.jit
def _merge_heads_kernel(
    levels,  # [HEADS, score_capacity] int16; row 0 becomes the sum
    histogram,  # [max_requests * PARTS, LEVELS], written
    prefix_lens,  # [max_requests]
    score_offsets,  # [max_requests]
    score_capacity,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    WEIGHT: tl.constexpr,
    STEPS: tl.constexpr,
    FLOOR: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Sum the heads' scores of one part of a request, and count the sums."""
    request = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    prefix = tl.load(prefix_lens + request)
    offset = tl.load(score_offsets + request)
    share = tl.cdiv(tl.cdiv(prefix, PARTS), CHUNK) * CHUNK
    stop = tl.where(offset >= 0, tl.minimum((part + 1) * share, prefix), 0)
    row = levels + tl.multiple_of(tl.maximum(offset, 0), 16)
    histogram_row = histogram + tl.program_id(0) * LEVELS
    tl.store(histogram_row + tl.arange(0, LEVELS), tl.zeros([LEVELS], tl.int32))
    tl.debug_barrier()  # every thread's zeros are there before another one counts
    for start in range(part * share, stop, CHUNK):
        position = start + tl.arange(0, CHUNK)
        inside = position < stop
        if WEIGHT:
            total = tl.zeros([CHUNK], tl.float32)
            for head in tl.static_range(HEADS):
                level = tl.load(row + head * score_capacity + position, mask=inside, other=0)
                total += tl.exp2(level.to(tl.float32) / STEPS + FLOOR)
            x = (tl.log2(total) - FLOOR) * STEPS
            merged = tl.minimum(tl.maximum(x, 0.0), LEVELS - 1.0).to(tl.int32)
        else:
            merged = tl.zeros([CHUNK], tl.int32)
            for head in tl.static_range(HEADS):
                merged += tl.load(row + head * score_capacity + position, mask=inside, other=0).to(tl.int32)
            merged = merged // HEADS
        tl.store(row + position, merged.to(tl.int16), mask=inside)
        tl.atomic_add(histogram_row + merged, 1, mask=inside, sem="relaxed")


@triton.jit
def _write(
    slots, positions, index, position, mask, table_row, table_width, block_size,
    BLOCK_SIZE: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Store the slots (and positions) of chosen positions at their places in the list."""
    if BLOCK_SIZE > 0:
        block, place = position // BLOCK_SIZE, position % BLOCK_SIZE
    else:
        block, place = position // block_size, position % block_size
    known = mask & (block < table_width)
    slot = tl.load(table_row + block, mask=known, other=0) * block_size + place
    tl.store(slots + index, tl.where(known, slot, 0), mask=mask)
    if POSITIONS:
        tl.store(positions + index, position, mask=mask)


@triton.jit
def _threshold(histogram, first_slot, part, parts, count, LEVELS: tl.constexpr):
    """The last level taken, how many of its smallest positions are not, and what the parts before `part` hold.

    Returns the level, the ties to skip, and the positions above the level and at it in earlier parts.
    """
    COARSE: tl.constexpr = 64
    FINE: tl.constexpr = LEVELS // COARSE
    coarse_bin = tl.arange(0, COARSE)
    fine_bin = tl.arange(0, FINE)
    level = coarse_bin[:, None] * FINE + fine_bin[None, :]
    total = tl.zeros([COARSE, FINE], tl.int32)
    earlier = tl.zeros([COARSE, FINE], tl.int32)
    for first in range(0, parts, 4):
        for ahead in tl.static_range(4):  # four loads in flight
            other = first + ahead
            row = histogram + (first_slot + tl.minimum(other, parts - 1)).to(tl.int64) * LEVELS
            counted = tl.load(row + level)
            total += tl.where(other < parts, counted, 0)
            earlier += tl.where(other < part, counted, 0)
    coarse = tl.sum(total, 1)
    coarse_level = tl.sum((tl.cumsum(coarse, 0, reverse=True) >= count).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(coarse_bin > coarse_level, coarse, 0), 0)
    fine = tl.sum(tl.where(coarse_bin[:, None] == coarse_level, total, 0), 0)
    fine_level = tl.sum((tl.cumsum(fine, 0, reverse=True) + above >= count).to(tl.int32), 0) - 1
    above += tl.sum(tl.where(fine_bin > fine_level, fine, 0), 0)
    ties = tl.sum(tl.where(fine_bin == fine_level, fine, 0), 0)
    last_level = coarse_level * FINE + fine_level
    above_before = tl.sum(tl.sum(tl.where(level > last_level, earlier, 0), 1), 0)
    ties_before = tl.sum(tl.sum(tl.where(level == last_level, earlier, 0), 1), 0)
    return last_level, ties - (count - above), above_before, ties_before


@triton.jit
def _select_part(
    slots, positions, level_row, histogram, first_slot, part, parts, start, stop, prefix, count, offset,
    table_row, table_width, width, tail, block_size,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write what one part, the positions ``[start, stop)``, has of a request's list; the first part writes the tail."""
    lane = tl.arange(0, CHUNK)
    if offset >= 0:
        level = tl.load(level_row + start + lane, mask=start + lane < stop, other=-1)
        last_level, skipped_ties, above_before, ties_before = _threshold(
            histogram, first_slot, part, parts, count, LEVELS
        )
        for first in range(start, stop, CHUNK):
            position = first + lane
            ahead = position + CHUNK
            next_level = tl.load(level_row + ahead, mask=ahead < stop, other=-1)
            is_above = (level > last_level).to(tl.int32)
            is_tie = (level == last_level).to(tl.int32)
            # Both running counts in one scan; a chunk has fewer than 2^15 positions.
            both = is_above + (is_tie << 16)
            running = tl.cumsum(both, 0)
            tie_rank = ties_before + (running >> 16) - is_tie
            index = above_before + (running & 0xFFFF) - is_above + tl.maximum(tie_rank - skipped_ties, 0)
            taken = (is_above == 1) | ((is_tie == 1) & (tie_rank >= skipped_ties))
            _write(
                slots, positions, index, position, taken & (index < width), table_row, table_width, block_size,
                BLOCK_SIZE, POSITIONS,
            )  # fmt: skip
            total = tl.sum(both, 0)
            above_before += total & 0xFFFF
            ties_before += total >> 16
            level = next_level
    if part == 0:
        if offset < 0:
            kept = tl.minimum(count, FIRST)
            for first in range(0, count, CHUNK):
                index = first + lane
                position = tl.where(index < kept, index, prefix - count + index)
                _write(
                    slots, positions, index, position, index < tl.minimum(count, width), table_row, table_width,
                    block_size, BLOCK_SIZE, POSITIONS,
                )  # fmt: skip
        step = tl.arange(0, TAIL)
        _write(
            slots, positions, count + step, prefix + step, (step < tail) & (count + step < width), table_row,
            table_width, block_size, BLOCK_SIZE, POSITIONS,
        )  # fmt: skip


@triton.jit
def _select_kernel(
    slots,  # [batch, GROUPS, width], written
    positions,  # [batch, GROUPS, width], written if POSITIONS
    levels,  # [heads, score_capacity] int16
    histogram,  # [slots, LEVELS]
    programs,  # [programs of the verification, RECORD]
    tile_starts,  # [max_requests + 1]
    prefix_lens,  # [max_requests]
    score_offsets,  # [max_requests]
    counts,  # [batch]
    block_table,  # [batch, table_width]
    stride_table,
    table_width,
    score_capacity,
    width,
    tail,
    block_size,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    RECORD: tl.constexpr,
    SHARERS: tl.constexpr,
    PARTS: tl.constexpr,  # parts per request if GROUPS is 1 and the heads were summed, 0 otherwise
    LEVELS: tl.constexpr,
    CHUNK: tl.constexpr,
    MERGED_CHUNK: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: not a power of two
    TAIL: tl.constexpr,  # tail, padded to a power of two
):
    """Select where it was scored: a program's parts are those of one program of the verification.

    The parts' histograms tell each of them, without waiting for another, what the others take.
    """
    if PARTS > 0:
        request = tl.program_id(0) // PARTS
        part = tl.program_id(0) % PARTS
        prefix = tl.load(prefix_lens + request)
        offset = tl.load(score_offsets + request)
        count = tl.minimum(tl.load(counts + request), prefix)
        share = tl.cdiv(tl.cdiv(prefix, PARTS), MERGED_CHUNK) * MERGED_CHUNK
        if prefix > 0:
            row = request.to(tl.int64) * width
            _select_part(
                slots + row, positions + row, levels + tl.multiple_of(tl.maximum(offset, 0), 16), histogram,
                request * PARTS, part, PARTS, part * share, tl.minimum((part + 1) * share, prefix), prefix, count,
                offset, block_table + request.to(tl.int64) * stride_table, table_width, width, tail, block_size,
                LEVELS, CHUNK, POSITIONS, FIRST, BLOCK_SIZE, TAIL,
            )  # fmt: skip
    else:
        program = tl.program_id(0) // SHARERS
        turn = tl.program_id(0) % SHARERS
        record = programs + program * RECORD
        request = tl.load(record)
        head = tl.load(record + 1)
        tile = tl.load(record + 2)
        units = tl.load(record + 3)
        tiles = tl.load(record + 4)
        head_start = tl.load(record + 5)
        share = tl.load(record + 10)
        while units > 0:
            tile_stop = tl.minimum(tiles, tile + units)
            units -= tile_stop - tile
            if turn == 0:
                prefix = tl.load(prefix_lens + request)
                offset = tl.load(score_offsets + request)
                count = tl.minimum(tl.load(counts + request), prefix)
                first_program = head_start // share
                parts = (head_start + tiles - 1) // share - first_program + 1
                pair = request * GROUPS + head
                row = pair.to(tl.int64) * width
                level_row = levels + head.to(tl.int64) * score_capacity + tl.multiple_of(tl.maximum(offset, 0), 16)
                _select_part(
                    slots + row, positions + row, level_row, histogram, first_program + pair,
                    program - first_program, parts, tile * TILE, tl.minimum(tile_stop * TILE, prefix), prefix, count,
                    offset, block_table + request.to(tl.int64) * stride_table, table_width, width, tail, block_size,
                    LEVELS, CHUNK, POSITIONS, FIRST, BLOCK_SIZE, TAIL,
                )  # fmt: skip
                turn = SHARERS
            turn -= 1
            head_start += tiles
            tile = 0
            head += 1
            if (head == GROUPS) & (units > 0):
                head = 0
                request += 1
                while tl.load(tile_starts + request + 1) * GROUPS <= head_start:  # a padding row
                    request += 1
                tiles = tl.load(tile_starts + request + 1) - tl.load(tile_starts + request)
