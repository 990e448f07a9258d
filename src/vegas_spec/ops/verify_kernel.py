"""The Triton kernel of `vegas_spec.ops.verify_attention`.

The products are transposed: ``S^T = K Q^T`` and ``O^T = V^T P^T``. Keys fill the matrix unit's long dimension and the
few query rows (times the heads that share a KV head) its short one, one key's score is a sum within few lanes, and
nothing has to cross warps inside the loop.

There is no running maximum, which would take a reduction across warps and a pass over the output for every tile, and
would leave scores of different tiles on different scales. Before its tiles, a program computes the log-sum-exp of a
sample of the keys that each row sees (the first 32 and the latest 96, the row's own among them) and uses it as the
exponent's reference: it is a lower bound of the true one, so no weight that matters underflows, and
``exp(logit - reference)`` is at once the weight's estimate that selection ranks by. Every program of a request's head
computes the same reference. Should a sum outgrow its range (the sample by 2^64, for float16 by 2^11), the program takes
its exact maximum and repeats its share.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from vegas_spec.ops import record
from vegas_spec.ops.tiles import LOG2E, block_number, capped, load_tile, merge_parts, place_in_block, token_offset

# Where attention's weight mostly lies: at the start (its sinks) and at the end, with the rows' own keys, which no
# window hides. Together they are one tile, so that a head's start costs about a tile more;
# how much of it lies at the start was chosen by hand.
SAMPLE_KEYS = 128
SAMPLE_FIRST = 32

_SAMPLE_KEYS = tl.constexpr(SAMPLE_KEYS)
_SAMPLE_FIRST = tl.constexpr(SAMPLE_FIRST)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _visible(position, row_position, window, WINDOW: tl.constexpr):
    """Whether each key may be seen by each column, ``[keys, columns]``; positions are ``[keys]`` and ``[columns]``."""
    visible = position[:, None] <= row_position[None, :]
    if WINDOW:
        visible = visible & (position[:, None] > row_position[None, :] - window)
    return visible


@triton.jit
def _log2_sum_exp2(logits):
    """Over the keys, from ``[keys, columns]`` to ``[columns]``."""
    peak = tl.max(logits, 0)
    return peak + tl.log2(tl.sum(tl.exp2(logits - peak[None, :]), 0))


@triton.jit
def _attend_tiles(
    acc, sums,  # [DIM, COLUMNS], [TILE, COLUMNS] float32
    block,  # [TILE] int32, block numbers of the first tile
    query,  # [DIM, COLUMNS]
    reference, cap_reference, scored_column,  # [COLUMNS] float32, float32, bool
    anchor, per_score,  # float32
    key_base, value_base, block_table_row, level_row, histogram_row,  # pointers to first entries
    first_tile, last_tile, seq_len, score_stop,
    row_position,  # [COLUMNS] int32
    qk_scale, softcap, window, block_size,
    stride_key_block, stride_key_place, stride_value_block, stride_value_place,
    SCORE: tl.constexpr, COUNT: tl.constexpr, STEPS: tl.constexpr, FLOOR: tl.constexpr, LEVELS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add tiles ``[first_tile, last_tile)`` to the output and the sums, and store their scores."""
    lane = tl.arange(0, TILE)
    # One masked loop for all tiles: a second one, for the tiles that need a mask, would have to fill its pipeline anew.
    for tile in tl.range(first_tile, last_tile, num_stages=STAGES):
        position = tile * TILE + lane
        inside = position < seq_len
        place = place_in_block(position, block_size, BLOCK_SIZE)
        offset = token_offset(block, place, stride_key_block, stride_key_place)
        key = load_tile(key_base, offset, inside, HEAD_DIM, DIM)
        if not SAME_STRIDES:
            offset = token_offset(block, place, stride_value_block, stride_value_place)
        value = load_tile(value_base, offset, inside, HEAD_DIM, DIM)
        # The next tile's block numbers are read a step ahead: the cache's loads never wait for them. (Two steps ahead
        # is more than Triton 3.6 pipelines.)
        ahead = position + TILE
        block = block_number(block_table_row, ahead, ahead < seq_len, block_size, BLOCK_SIZE)

        raw = tl.dot(key.to(query.dtype), query) * qk_scale
        weights = tl.exp2(capped(raw, softcap, SOFTCAP) - reference[None, :])
        # Masked after the exponential: before it, the mask would part the scale from the reference, which are one
        # multiply-add per logit.
        weights = tl.where(_visible(position, row_position, window, WINDOW), weights, 0.0)
        # Summed over the keys once, after the last tile: that crosses warps.
        sums += weights
        acc = tl.dot(tl.trans(value.to(query.dtype)), weights.to(query.dtype), acc)

        if SCORE != "none":
            if SCORE == "logit":
                score = tl.sum(tl.where(scored_column[None, :], raw, 0.0), 1) * per_score - anchor
            else:
                if SOFTCAP:
                    # Scores are of logits before the cap. Nothing bounds these, as the check of sums sees the capped
                    # ones: so they are cut where their sum over the columns is still finite.
                    weights = tl.exp2(tl.minimum(raw - cap_reference[None, :], 100.0))
                    weights = tl.where(_visible(position, row_position, window, WINDOW), weights, 0.0)
                score = tl.log2(tl.sum(tl.where(scored_column[None, :], weights, 0.0), 1)) - anchor
            # A NaN takes the other operand: level 0.
            level = tl.minimum(tl.maximum((score - FLOOR) * STEPS, 0.0), LEVELS - 1.0).to(tl.int32)
            store = position < score_stop
            tl.store(level_row + position, level.to(tl.int16), mask=store)
            if COUNT:
                # Counts are the same in any order, and nobody reads them before the kernel ends: relaxed will do.
                tl.atomic_add(histogram_row + level, 1, mask=store, sem="relaxed")
    return acc, sums


@triton.jit
def _maximum_of_tiles(
    peak,  # [COLUMNS] float32
    query,  # [DIM, COLUMNS]
    key_base, block_table_row,  # pointers to first entries
    first_tile, last_tile, seq_len,
    row_position,  # [COLUMNS] int32
    qk_scale, softcap, window, block_size, stride_key_block, stride_key_place,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Largest logit of each column over tiles ``[first_tile, last_tile)``, at least `peak`."""
    # Rare, hence simple: no pipeline. (It has no transposed operand, which only a pipelined copy may be.)
    for tile in tl.range(first_tile, last_tile, num_stages=1):
        position = tile * TILE + tl.arange(0, TILE)
        inside = position < seq_len
        block = block_number(block_table_row, position, inside, block_size, BLOCK_SIZE)
        place = place_in_block(position, block_size, BLOCK_SIZE)
        offset = token_offset(block, place, stride_key_block, stride_key_place)
        key = load_tile(key_base, offset, inside, HEAD_DIM, DIM)
        logits = capped(tl.dot(key.to(query.dtype), query) * qk_scale, softcap, SOFTCAP)
        logits = tl.where(_visible(position, row_position, window, WINDOW), logits, float("-inf"))
        peak = tl.maximum(peak, tl.max(logits, 0))
    return peak


@triton.jit
def verify_kernel(
    out,  # [rows, heads, HEAD_DIM], written
    lse,  # [rows, heads] float32, written
    query,  # [rows, heads, HEAD_DIM]
    key_cache,  # [blocks, block_size, KV_HEADS, HEAD_DIM]
    value_cache,  # like key_cache
    block_table,  # [batch, blocks per request]
    query_start_loc,  # [batch + 1]
    seq_lens,  # [batch]
    sinks,  # [heads]
    key_scale,  # [1]
    value_scale,  # [1]
    tile_starts,  # [max_requests + 1]
    programs,  # [PROGRAMS, record.LENGTH] int32
    score_offsets,  # [max_requests]
    levels,  # [KV_HEADS, score_capacity] int16, written
    histogram,  # [slots, LEVELS], written if COUNT
    partial_out,  # [PROGRAMS + max_requests * KV_HEADS, DIM, COLUMNS], scratch
    partial_stats,  # [PROGRAMS + max_requests * KV_HEADS, 2, COLUMNS], scratch
    arrivals,  # [max_requests * KV_HEADS], 0 before and after
    scale,
    softcap,
    window,
    block_size,
    score_capacity,
    stride_out_row, stride_out_head, stride_lse_row, stride_query_row, stride_query_head,
    stride_key_block, stride_key_place, stride_key_head,
    stride_value_block, stride_value_place, stride_value_head,
    stride_table,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per KV head
    COLUMNS: tl.constexpr,  # query rows times GROUP, padded to a power of two
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,  # HEAD_DIM, padded to a power of two
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: not a power of two
    SCORE: tl.constexpr,  # "none", "weight", "logit"
    COUNT: tl.constexpr,  # whether the histogram is filled
    ALL_ROWS: tl.constexpr,
    STEPS: tl.constexpr, FLOOR: tl.constexpr, LEVELS: tl.constexpr,
    SAME_STRIDES: tl.constexpr,  # of keys and values
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
    KEY_SCALE: tl.constexpr, VALUE_SCALE: tl.constexpr,
    SHIFT: tl.constexpr,  # octaves between the sample's log-sum-exp and the reference
    LIMIT: tl.constexpr,  # largest sum of weights that is trusted
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,  # launched before the kernel ahead has ended
):  # fmt: skip
    """One program works through its share of the tiles, one request's head after another."""
    # Before anything is read or written: the kernel ahead may still be writing keys, queries or the plan, or reading
    # the scratch; what is won is the launch itself. Every kernel waits, whatever it reads: only so does the end of one
    # say that all before it have ended. GPUs before Hopper do not know the instruction, hence EARLY.
    if EARLY:
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    # All of the record at once: a chain (which request, then its lengths) would wait for memory at every link.
    own = programs + program * record.LENGTH
    request = tl.load(own + record.REQUEST)
    head = tl.load(own + record.HEAD)
    tile = tl.load(own + record.TILE)
    units = tl.load(own + record.UNITS)
    tiles = tl.load(own + record.TILES)
    head_start = tl.load(own + record.HEAD_START)
    row_start = tl.load(own + record.ROW_START)
    query_len = tl.load(own + record.QUERY_LEN)
    seq_len = tl.load(own + record.SEQ_LEN)
    score_offset = tl.load(own + record.SCORE_OFFSET)
    share = tl.load(own + record.SHARE)
    step = tl.load(own + record.STEP)

    column = tl.arange(0, COLUMNS)
    dim = tl.arange(0, DIM)
    row = column // GROUP
    qk_scale = scale * LOG2E
    out_scale = 1.0
    if KEY_SCALE:
        qk_scale = qk_scale * tl.load(key_scale)
    if VALUE_SCALE:
        out_scale = tl.load(value_scale)

    while units > 0:
        tile_stop = tl.minimum(tiles, tile + units)
        units -= tile_stop - tile
        pair = request * KV_HEADS + head
        prefix = seq_len - query_len + 1
        if WINDOW:
            # The plan counts tiles from the first one that the window leaves.
            skipped = tl.maximum(prefix - window, 0) // TILE
            tile += skipped
            tile_stop += skipped
        row_position = prefix - 1 + row
        real = row < query_len
        query_head = head * GROUP + column % GROUP
        query_offset = (row_start + row).to(tl.int64) * stride_query_row + query_head * stride_query_head
        block_table_row = block_table + request.to(tl.int64) * stride_table
        key_base = key_cache + head.to(tl.int64) * stride_key_head
        value_base = value_cache + head.to(tl.int64) * stride_value_head

        # Block numbers first, the sample's and the first tile's, then the query: all are under way before one is used.
        sample = tl.arange(0, _SAMPLE_KEYS)
        sample += tl.where(sample >= _SAMPLE_FIRST, tl.maximum(seq_len - _SAMPLE_KEYS, 0), 0)
        sample_block = block_number(block_table_row, sample, sample < seq_len, block_size, BLOCK_SIZE)
        position = tile * TILE + tl.arange(0, TILE)
        block = block_number(block_table_row, position, position < seq_len, block_size, BLOCK_SIZE)
        q = tl.load(
            query + query_offset[None, :] + dim[:, None], mask=real[None, :] & (dim < HEAD_DIM)[:, None], other=0.0
        )
        place = place_in_block(sample, block_size, BLOCK_SIZE)
        token = token_offset(sample_block, place, stride_key_block, stride_key_place)
        key = load_tile(key_base, token, sample < seq_len, HEAD_DIM, DIM)
        raw = tl.dot(key.to(q.dtype), q) * qk_scale
        seen = _visible(sample, row_position, window, WINDOW) & (sample < seq_len)[:, None]
        # The same keys for all programs of a head, whatever their share: their levels will be compared.
        lowest = _log2_sum_exp2(tl.where(seen, capped(raw, softcap, SOFTCAP), float("-inf")))
        cap_reference = lowest
        if SOFTCAP:
            cap_reference = _log2_sum_exp2(tl.where(seen, raw, float("-inf")))
        sink = tl.zeros([COLUMNS], tl.float32)
        if SINKS:
            sink = tl.load(sinks + query_head).to(tl.float32) * LOG2E
            joint = tl.maximum(lowest, sink)
            lowest = joint + tl.log2(tl.exp2(lowest - joint) + tl.exp2(sink - joint))
            if SOFTCAP:
                joint = tl.maximum(cap_reference, sink)
                cap_reference = joint + tl.log2(tl.exp2(cap_reference - joint) + tl.exp2(sink - joint))
        # Columns that hold no query have logits of 0 and must not look like an overflow.
        reference = tl.where(real, lowest - SHIFT, 0.0)

        scored_column = real
        anchor = 0.0
        per_score = 1.0
        score_stop = 0
        level_row = levels
        histogram_row = histogram
        if SCORE != "none":
            if not ALL_ROWS:
                scored_column = real & ((row == 0) | (row == query_len - 1))
            if SCORE == "logit":
                per_score = 1.0 / tl.sum(scored_column.to(tl.float32), 0)
                chosen = tl.sum(tl.where(scored_column[None, :], raw, 0.0), 1) * per_score
                anchor = tl.max(tl.where(sample < prefix, chosen, float("-inf")), 0)
            elif not SOFTCAP:
                anchor = 0.0 + SHIFT  # attention's weights serve as scores, and are too large by that
            score_stop = tl.where(score_offset >= 0, prefix, 0)
            level_row = levels + head.to(tl.int64) * score_capacity + tl.maximum(score_offset, 0)
            if COUNT:
                # Every program counts for itself: thousands of programs' atomics on one row's few levels would queue.
                slot = record.slot_of_part(program, pair, step).to(tl.int64)
                histogram_row = histogram + slot * LEVELS
                tl.store(histogram_row + tl.arange(0, LEVELS), tl.zeros([LEVELS], tl.int32))
                # Every thread's zeros are there before another one counts. Triton itself puts barriers where threads
                # exchange values through shared memory, but knows nothing of what they exchange through pointers.
                tl.debug_barrier()

        acc = tl.zeros([DIM, COLUMNS], tl.float32)
        sums = tl.zeros([COLUMNS], tl.float32)
        # Two attempts are enough: with the exact maximum as its reference, no weight is above 1. And there must not be
        # more: the sums of a NaN are never below the limit.
        attempt = 0
        while attempt < 2:
            acc = tl.zeros([DIM, COLUMNS], tl.float32)
            tile_sums = tl.zeros([TILE, COLUMNS], tl.float32)
            acc, tile_sums = _attend_tiles(
                acc, tile_sums, block, q, reference, cap_reference, scored_column, anchor, per_score,
                key_base, value_base, block_table_row, level_row, histogram_row,
                tile, tile_stop, seq_len, score_stop, row_position,
                qk_scale, softcap, window, block_size,
                stride_key_block, stride_key_place, stride_value_block, stride_value_place,
                SCORE, COUNT, STEPS, FLOOR, LEVELS, HEAD_DIM, DIM, TILE, BLOCK_SIZE,
                SAME_STRIDES, SOFTCAP, WINDOW, STAGES,
            )  # fmt: skip
            sums = tl.sum(tile_sums, 0)
            trusted = tl.min(tl.where(sums < LIMIT, 1, 0), 0)
            attempt = tl.where(trusted == 1, 2, attempt + 1)
            if attempt == 1:
                score_stop = 0  # the first attempt's scores stand, saturated where they were out of range
                reference = _maximum_of_tiles(
                    reference, q, key_base, block_table_row, tile, tile_stop, seq_len, row_position,
                    qk_scale, softcap, window, block_size, stride_key_block, stride_key_place,
                    HEAD_DIM, DIM, TILE, BLOCK_SIZE, SOFTCAP, WINDOW,
                )  # fmt: skip

        first, parts = record.parts_of_head(head_start, tiles, share, step)
        finished = parts == 1
        if parts > 1:
            slot = record.slot_of_part(program, pair, step).to(tl.int64)
            tl.store(partial_out + slot * DIM * COLUMNS + dim[:, None] * COLUMNS + column[None, :], acc)
            tl.store(partial_stats + slot * 2 * COLUMNS + column, reference)
            tl.store(partial_stats + (slot * 2 + 1) * COLUMNS + column, sums)
            tl.debug_barrier()  # every thread's part is written before it is announced
            # Releases this part and acquires those announced before: who counts the last one sees all of them. Nobody
            # waits for another program, which may not have started yet.
            finished = tl.atomic_add(arrivals + pair, 1, sem="acq_rel") == parts - 1
            if finished:
                tl.store(arrivals + pair, 0)  # for the next layer, which then needs no launch to clear it
                first_slot = record.slot_of_part(first, pair, step)
                acc, sums, reference = merge_parts(partial_out, partial_stats, first_slot, parts, DIM, COLUMNS)
        if finished:
            if SINKS:
                sums += tl.exp2(sink - reference)  # once per head, not once per part
            place_out = (row_start + row).to(tl.int64)
            result = acc * (out_scale / sums)[None, :]
            tl.store(
                out + (place_out * stride_out_row + query_head * stride_out_head)[None, :] + dim[:, None],
                result.to(out.dtype.element_ty),
                mask=real[None, :] & (dim < HEAD_DIM)[:, None],
            )
            if LSE:
                tl.store(lse + place_out * stride_lse_row + query_head, (reference + tl.log2(sums)) * _LN2, mask=real)

        tile = 0
        request, head, tiles, head_start, moved = record.next_head(
            request, head, tiles, head_start, step, units, tile_starts, KV_HEADS
        )
        if moved:
            row_start = tl.load(query_start_loc + request)
            query_len = tl.load(query_start_loc + request + 1) - row_start
            seq_len = tl.load(seq_lens + request)
            score_offset = tl.load(score_offsets + request)
