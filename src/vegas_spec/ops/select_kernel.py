"""The Triton kernels of `vegas_spec.ops.select_kv`."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from vegas_spec.ops import record
from vegas_spec.ops.levels import SCORE_ALIGNMENT

_ALIGNMENT = tl.constexpr(SCORE_ALIGNMENT)


@triton.jit
def _larger(first, second):
    return tl.maximum(first, second)


@triton.jit
def _scores(
    row, position, mask, score_capacity, HEADS: tl.constexpr, WEIGHT: tl.constexpr, STEPS: tl.constexpr,
    FLOOR: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Levels of some positions, int32; of several heads, those of their sum. 0 where masked."""
    if HEADS == 1:
        return tl.load(row + position, mask=mask, other=0).to(tl.int32)
    # Weights add up, their logarithms do not; of `logit`, whose levels stand for logits, the mean is taken.
    if WEIGHT:
        total = tl.zeros(position.shape, tl.float32)
        for head in tl.static_range(HEADS):
            level = tl.load(row + head * score_capacity + position, mask=mask, other=0)
            total += tl.exp2(level.to(tl.float32) / STEPS + FLOOR)
        x = (tl.log2(total) - FLOOR) * STEPS
        return tl.where(mask, tl.minimum(tl.maximum(x, 0.0), LEVELS - 1.0).to(tl.int32), 0)
    mean = tl.zeros(position.shape, tl.int32)
    for head in tl.static_range(HEADS):
        mean += tl.load(row + head * score_capacity + position, mask=mask, other=0).to(tl.int32)
    return mean // HEADS


@triton.jit
def rank_kernel(
    ranks,  # [GROUPS, score_capacity] int16, written
    histogram,  # [slots, LEVELS], written
    levels,  # [GROUPS * HEADS, score_capacity] int16
    prefix_lens,  # [max_requests]
    score_offsets,  # [max_requests]
    counts,  # [batch]
    score_capacity,
    parts,  # per request and group
    decay,  # levels from one key to the next
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,  # of a group
    CHUNK: tl.constexpr,
    HALO: tl.constexpr,  # keys before a part whose scores may reach into it, padded to a power of two; 0: none flows
    WEIGHT: tl.constexpr,
    STEPS: tl.constexpr,
    FLOOR: tl.constexpr,
    LEVELS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """What one part of a request's positions is ranked by: heads summed, scores flowed forward; and how often each is.

    With ``decay`` levels lost from key to key, ``rank[i] = max(level[i], rank[i - 1] - decay)`` is a running maximum of
    ``level[i] + decay * i``: a scan within a chunk, one number from chunk to chunk. A part begins with the keys before
    it from which anything can be left, so that no border shows.

    Counters are what costs, so only levels are counted that can be chosen: no fewer than ``counts`` of a part's own
    positions lie at or above the lowest of them, hence nor do fewer of all.
    """
    if EARLY:  # as in `verify_kernel`
        tl.extra.cuda.gdc_wait()
    pair = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    request = pair // GROUPS
    prefix = tl.load(prefix_lens + request)
    offset = tl.load(score_offsets + request)
    share = tl.cdiv(tl.cdiv(prefix, parts), CHUNK) * CHUNK
    start = part * share
    stop = tl.where(offset >= 0, tl.minimum(start + share, prefix), 0)
    place = tl.multiple_of(tl.maximum(offset, 0), _ALIGNMENT)
    group = (pair % GROUPS).to(tl.int64)
    row = levels + group * HEADS * score_capacity + place
    rank_row = ranks + group * score_capacity + place
    lane = tl.arange(0, CHUNK)
    flowed = 0  # what reaches the chunk's first key from before
    if HALO > 0:
        distance = 1 + tl.arange(0, HALO)
        known = distance <= tl.where(start < stop, start, 0)
        before = _scores(row, start - distance, known, score_capacity, HEADS, WEIGHT, STEPS, FLOOR, LEVELS)
        flowed = tl.max(before - decay * distance, 0)
    COARSE: tl.constexpr = 64
    FINE: tl.constexpr = LEVELS // COARSE
    coarse = tl.zeros([COARSE], tl.int32)
    for first in range(start, stop, CHUNK):
        position = first + lane
        inside = position < stop
        rank = _scores(row, position, inside, score_capacity, HEADS, WEIGHT, STEPS, FLOOR, LEVELS)
        if HALO > 0:
            fallen = decay * lane
            running = tl.associative_scan(rank + fallen, 0, _larger)
            rank = tl.maximum(running, flowed) - fallen
            flowed = tl.maximum(tl.max(running, 0), flowed) - decay * CHUNK
        tl.store(rank_row + position, rank.to(tl.int16), mask=inside)
        # Of few bins it is a handful of votes a warp; of all 4,096 it would be thousands.
        coarse += tl.histogram(rank // FINE, COARSE, mask=inside)
    wanted = tl.load(counts + request)
    lowest = FINE * tl.maximum(tl.sum((tl.cumsum(coarse, 0, reverse=True) >= wanted).to(tl.int32), 0) - 1, 0)
    histogram_row = histogram + tl.program_id(0).to(tl.int64) * LEVELS
    tl.store(histogram_row + tl.arange(0, LEVELS), tl.zeros([LEVELS], tl.int32))
    tl.debug_barrier()  # every thread's zeros and ranks are there before another one counts
    for first in range(start, stop, CHUNK):
        position = first + lane
        rank = tl.load(rank_row + position, mask=position < stop, other=0).to(tl.int32)
        # Counts are the same in any order, and nobody reads them before the kernel ends: relaxed will do.
        tl.atomic_add(histogram_row + rank, 1, mask=(position < stop) & (rank >= lowest), sem="relaxed")


@triton.jit
def _write(
    slots, positions,  # pointers to a list's first entries
    index, position, mask,  # [chunk] int32, int32, bool
    table_row, table_width, block_size,
    BLOCK_SIZE: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Store the slots (and positions) of chosen positions at their places in the list."""
    if BLOCK_SIZE > 0:
        block, place = position // BLOCK_SIZE, position % BLOCK_SIZE
    else:
        block, place = position // block_size, position % block_size
    known = mask & (block < table_width)  # the tail may reach past the last block that the request has
    slot = tl.load(table_row + block, mask=known, other=0) * block_size + place
    tl.store(slots + index, tl.where(known, slot, 0), mask=mask)
    if POSITIONS:
        tl.store(positions + index, position, mask=mask)


@triton.jit
def _threshold(histogram, first_slot, part, parts, count, LEVELS: tl.constexpr):
    """The last level taken, how many of its smallest positions are not, and what the parts before `part` hold.

    Returns the level, the ties to skip, and the positions above the level and at it in earlier parts, all int32. Every
    part sums all histograms for itself, so that none has to wait for another.
    """
    # In two steps of 64, coarse levels and those within one, as a table of 64 x 64: two short scans and sums over rows,
    # instead of one scan over 4,096 levels across all warps.
    COARSE: tl.constexpr = 64
    FINE: tl.constexpr = LEVELS // COARSE
    coarse_bin = tl.arange(0, COARSE)
    fine_bin = tl.arange(0, FINE)
    level = coarse_bin[:, None] * FINE + fine_bin[None, :]
    total = tl.zeros([COARSE, FINE], tl.int32)
    earlier = tl.zeros([COARSE, FINE], tl.int32)
    for first in range(0, parts, 2):
        # Two loads in flight: a step ends with additions, which would otherwise have to wait for each row by itself.
        for ahead in tl.static_range(2):
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
    slots, positions, level_row, histogram,  # pointers to first entries, the last one's of all parts
    first_slot, part, parts, start, stop, prefix, count, offset,
    table_row, table_width, width, tail, block_size,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write what one part, the positions ``[start, stop)``, has of a request's list; the first part writes the tail."""
    LIST_CHUNK: tl.constexpr = 1024
    lane = tl.arange(0, CHUNK)
    if offset >= 0:
        # A row of scores is padded to whole vectors, so that a load needs no mask within one.
        padded = (stop + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        # On their way while the histograms are summed, as is each chunk's successor below while the chunk is ranked.
        level = tl.load(level_row + start + lane, mask=start + lane < padded, other=-1).to(tl.int32)
        last_level, skipped_ties, above_before, ties_before = _threshold(
            histogram, first_slot, part, parts, count, LEVELS
        )
        # Ties are skipped from the smallest position on, so parts know theirs without asking: the latest are taken.
        begin = above_before + tl.maximum(ties_before - skipped_ties, 0)
        for first in range(start, stop, CHUNK):
            ahead = first + CHUNK + lane
            next_level = tl.load(level_row + ahead, mask=ahead < padded, other=-1).to(tl.int32)
            level = tl.where(first + lane < stop, level, -1)
            is_above = (level > last_level).to(tl.int32)
            is_tie = (level == last_level).to(tl.int32)
            # Both running counts in one scan; a chunk has fewer than 2^15 positions.
            both = is_above + (is_tie << 16)
            running = tl.cumsum(both, 0)
            tie_rank = ties_before + (running >> 16) - is_tie
            index = above_before + (running & 0xFFFF) - is_above + tl.maximum(tie_rank - skipped_ties, 0)
            taken = (is_above == 1) | ((is_tie == 1) & (tie_rank >= skipped_ties))
            tl.store(slots + index, first + lane, mask=taken & (index < width))
            total = tl.sum(both, 0)
            above_before += total & 0xFFFF
            ties_before += total >> 16
            level = next_level
        # The few positions taken become slots afterwards: most of a chunk's positions need no block number. A barrier,
        # because a position is read back by another thread than the one that has put it into the list.
        tl.debug_barrier()
        end = tl.minimum(above_before + tl.maximum(ties_before - skipped_ties, 0), width)
        place_in_list = tl.arange(0, LIST_CHUNK)
        for first in range(begin, end, LIST_CHUNK):
            index = first + place_in_list
            position = tl.load(slots + index, mask=index < end, other=0)
            _write(
                slots, positions, index, position, index < end, table_row, table_width, block_size,
                BLOCK_SIZE, POSITIONS,
            )  # fmt: skip
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
def select_kernel(
    slots,  # [batch, GROUPS, width], written
    positions,  # [batch, GROUPS, width], written if POSITIONS
    levels,  # [heads, score_capacity] int16; if RANKED, what `rank_kernel` wrote
    histogram,  # [slots, LEVELS]
    programs,  # [programs of the verification, record.LENGTH]
    tile_starts,  # [max_requests + 1]
    prefix_lens,  # [max_requests]
    score_offsets,  # [max_requests]
    counts,  # [batch]
    block_table,  # [batch, table_width]
    stride_table,
    table_width,
    score_capacity,
    parts,  # per request and group, if RANKED
    width,
    tail,
    block_size,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    RANKED: tl.constexpr,  # whether parts are those of `rank_kernel`
    LEVELS: tl.constexpr,
    CHUNK: tl.constexpr,
    RANK_CHUNK: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: not a power of two
    TAIL: tl.constexpr,  # tail, padded to a power of two
    EARLY: tl.constexpr,  # launched before the kernel ahead has ended
):
    """Select from one part: where scores were ranked, one of `rank_kernel`, else what one program of the verification
    has scored.

    The parts' histograms tell each of them, without waiting for another, what the others take.
    """
    if EARLY:  # as in `verify_kernel`
        tl.extra.cuda.gdc_wait()
    if RANKED:
        pair = tl.program_id(0) // parts
        part = tl.program_id(0) % parts
        request = pair // GROUPS
        prefix = tl.load(prefix_lens + request)
        offset = tl.load(score_offsets + request)
        count = tl.minimum(tl.load(counts + request), prefix)
        share = tl.cdiv(tl.cdiv(prefix, parts), RANK_CHUNK) * RANK_CHUNK
        if prefix > 0:
            row = pair.to(tl.int64) * width
            rank_row = levels + (pair % GROUPS).to(tl.int64) * score_capacity
            _select_part(
                slots + row, positions + row, rank_row + tl.multiple_of(tl.maximum(offset, 0), _ALIGNMENT), histogram,
                pair * parts, part, parts, part * share, tl.minimum((part + 1) * share, prefix), prefix, count,
                offset, block_table + request.to(tl.int64) * stride_table, table_width, width, tail, block_size,
                LEVELS, CHUNK, POSITIONS, FIRST, BLOCK_SIZE, TAIL,
            )  # fmt: skip
    else:
        program = tl.program_id(0)
        own = programs + program * record.LENGTH
        request = tl.load(own + record.REQUEST)
        head = tl.load(own + record.HEAD)
        tile = tl.load(own + record.TILE)
        units = tl.load(own + record.UNITS)
        tiles = tl.load(own + record.TILES)
        head_start = tl.load(own + record.HEAD_START)
        share = tl.load(own + record.SHARE)
        step = tl.load(own + record.STEP)
        # The walk of `verify_kernel`, so that positions are those which the program there has counted.
        while units > 0:
            tile_stop = tl.minimum(tiles, tile + units)
            units -= tile_stop - tile
            prefix = tl.load(prefix_lens + request)
            offset = tl.load(score_offsets + request)
            count = tl.minimum(tl.load(counts + request), prefix)
            pair = request * GROUPS + head
            first, parts = record.parts_of_head(head_start, tiles, share, step)
            first_slot = record.slot_of_part(first, pair, step)
            part = record.slot_of_part(program, pair, step) - first_slot
            row = pair.to(tl.int64) * width
            offset_in_row = tl.multiple_of(tl.maximum(offset, 0), _ALIGNMENT)
            level_row = levels + head.to(tl.int64) * score_capacity + offset_in_row
            _select_part(
                slots + row, positions + row, level_row, histogram, first_slot,
                part, parts, tile * TILE, tl.minimum(tile_stop * TILE, prefix), prefix, count,
                offset, block_table + request.to(tl.int64) * stride_table, table_width, width, tail, block_size,
                LEVELS, CHUNK, POSITIONS, FIRST, BLOCK_SIZE, TAIL,
            )  # fmt: skip
            tile = 0
            request, head, tiles, head_start, _ = record.next_head(
                request, head, tiles, head_start, step, units, tile_starts, GROUPS
            )
