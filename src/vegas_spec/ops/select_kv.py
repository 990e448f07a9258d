"""The best-scored cache slots of every request, in one pass over the scores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vegas_spec.config import Score
from vegas_spec.ops.checks import check_choice, check_contiguous, check_last_dim, check_tensor, refuse
from vegas_spec.ops.levels import FLOOR, LEVELS, STEPS, to_levels
from vegas_spec.ops.plan import VerifyPlan
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
        Prepared in this step; `verify_attention` has scored with it. ``plan.histogram`` is cleared (of ``batch`` requests).
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
            check_tensor(name, tensor, (batch, plan.groups, None if name == "slots" else slots.shape[2]), (torch.int32,), device)
            check_contiguous(name, tensor)
    if tail < 0 or tail > slots.shape[2]:
        raise refuse("tail", "from 0 to the width of slots", tail)
    torch.ops.vegas_spec.select_kv(
        plan.levels, plan.histogram, plan.prefix_lens, plan.score_offsets, counts, block_table, slots, positions,
        block_size, tail, score,
    )  # fmt: skip
    return slots


def launch(
    levels: Tensor,
    histogram: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
) -> None:
    """Run the Triton kernels."""
    batch, groups, width = slots.shape
    heads = levels.shape[0]
    if groups != heads:
        _merge_heads_kernel[(batch, SELECT.merge_programs)](
            levels, histogram, prefix_lens, score_offsets, levels.shape[1],
            HEADS=heads, CHUNK=SELECT.merge_chunk, PROGRAMS=SELECT.merge_programs, WEIGHT=score == "weight",
            STEPS=STEPS[score], FLOOR=FLOOR[score], LEVELS=LEVELS, num_warps=4,  # type: ignore[index]
        )  # fmt: skip
    _select_kernel[(batch * groups,)](
        slots, slots if positions is None else positions, levels, histogram, prefix_lens, score_offsets, counts,
        block_table, block_table.stride(0), block_table.shape[1], levels.shape[1], width, tail, block_size,
        GROUPS=groups, LEVELS=LEVELS, CHUNK=SELECT.chunk, POSITIONS=positions is not None, FIRST=FIRST_POSITIONS,
        BLOCK_SIZE=block_size if block_size & (block_size - 1) == 0 else 0,
        TAIL=triton.next_power_of_2(max(tail, 1)), num_warps=SELECT.warps,
    )  # fmt: skip


def reference(
    levels: Tensor,
    histogram: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
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
    histogram[:batch] = 0


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
    histogram,  # [max_requests, 1, LEVELS], added to
    prefix_lens,  # [max_requests]
    score_offsets,  # [max_requests]
    score_capacity,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WEIGHT: tl.constexpr,
    STEPS: tl.constexpr,
    FLOOR: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Sum the heads' scores of one request; the programs of a request take turns over its chunks."""
    request = tl.program_id(0)
    prefix = tl.load(prefix_lens + request)
    offset = tl.load(score_offsets + request)
    stop = tl.where(offset >= 0, prefix, 0)
    row = levels + tl.maximum(offset, 0)
    for start in range(tl.program_id(1) * CHUNK, stop, PROGRAMS * CHUNK):
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
        tl.atomic_add(histogram + request * LEVELS + merged, 1, mask=inside, sem="relaxed")


@triton.jit
def _write(slots, positions, index, position, mask, table_row, table_width, block_size, BLOCK_SIZE: tl.constexpr, POSITIONS: tl.constexpr):
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
def _select_kernel(
    slots,  # [batch, GROUPS, width], written
    positions,  # [batch, GROUPS, width], written if POSITIONS
    levels,  # [heads, score_capacity] int16
    histogram,  # [max_requests, GROUPS, LEVELS], cleared
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
    LEVELS: tl.constexpr,
    CHUNK: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: not a power of two
    TAIL: tl.constexpr,  # tail, padded to a power of two
):
    """One program per request and group: the histogram names the last level taken, one pass takes what lies above."""
    request = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    prefix = tl.load(prefix_lens + request)
    count = tl.minimum(tl.load(counts + request), prefix)
    offset = tl.load(score_offsets + request)
    row = tl.program_id(0).to(tl.int64) * width
    table_row = block_table + request.to(tl.int64) * stride_table
    lane = tl.arange(0, CHUNK)

    if offset >= 0:
        level_row = levels + group.to(tl.int64) * score_capacity + tl.multiple_of(offset, 16)
        level = tl.load(level_row + lane, mask=lane < prefix, other=-1)
        COARSE: tl.constexpr = 64
        FINE: tl.constexpr = LEVELS // COARSE
        coarse_bin = tl.arange(0, COARSE)
        fine_bin = tl.arange(0, FINE)
        bins = histogram + tl.program_id(0) * LEVELS + coarse_bin[:, None] * FINE + fine_bin[None, :]
        counted = tl.load(bins)
        tl.store(bins, tl.zeros([COARSE, FINE], tl.int32))
        coarse = tl.sum(counted, 1)
        coarse_level = tl.sum((tl.cumsum(coarse, 0, reverse=True) >= count).to(tl.int32), 0) - 1
        above = tl.sum(tl.where(coarse_bin > coarse_level, coarse, 0), 0)
        fine = tl.sum(tl.where(coarse_bin[:, None] == coarse_level, counted, 0), 0)
        fine_level = tl.sum((tl.cumsum(fine, 0, reverse=True) + above >= count).to(tl.int32), 0) - 1
        above += tl.sum(tl.where(fine_bin > fine_level, fine, 0), 0)
        ties = tl.sum(tl.where(fine_bin == fine_level, fine, 0), 0)
        last_level = coarse_level * FINE + fine_level
        skipped_ties = ties - (count - above)  # the smallest positions among the ties

        above_before = 0
        ties_before = 0
        for start in range(0, prefix, CHUNK):
            position = start + lane
            ahead = position + CHUNK
            next_level = tl.load(level_row + ahead, mask=ahead < prefix, other=-1)
            is_above = (level > last_level).to(tl.int32)
            is_tie = (level == last_level).to(tl.int32)
            # Both running counts in one scan; a chunk has fewer than 2^15 positions.
            both = is_above + (is_tie << 16)
            running = tl.cumsum(both, 0)
            tie_rank = ties_before + (running >> 16) - is_tie
            index = above_before + (running & 0xFFFF) - is_above + tl.maximum(tie_rank - skipped_ties, 0)
            taken = (is_above == 1) | ((is_tie == 1) & (tie_rank >= skipped_ties))
            _write(
                slots + row, positions + row, index, position, taken & (index < width), table_row, table_width,
                block_size, BLOCK_SIZE, POSITIONS,
            )  # fmt: skip
            total = tl.sum(both, 0)
            above_before += total & 0xFFFF
            ties_before += total >> 16
            level = next_level
    else:
        first = tl.minimum(count, FIRST)
        for start in range(0, count, CHUNK):
            index = start + lane
            position = tl.where(index < first, index, prefix - count + index)
            _write(
                slots + row, positions + row, index, position, index < tl.minimum(count, width), table_row, table_width,
                block_size, BLOCK_SIZE, POSITIONS,
            )  # fmt: skip

    step = tl.arange(0, TAIL)
    index = count + step
    inside = (step < tl.where(prefix > 0, tail, 0)) & (index < width)
    _write(
        slots + row, positions + row, index, prefix + step, inside, table_row, table_width, block_size,
        BLOCK_SIZE, POSITIONS,
    )  # fmt: skip
