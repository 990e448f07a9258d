"""The Triton kernel of `vegas_spec.ops.sparse_attention`; products are transposed as in `verify_kernel`."""

from __future__ import annotations

import triton
import triton.language as tl

from vegas_spec.ops.tiles import capped, load_tile, merge_parts, token_offset

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sparse_kernel(
    out,  # [batch, heads, HEAD_DIM], written
    query,  # [batch, heads, HEAD_DIM]
    key_cache,  # [blocks, block_size, KV_HEADS, HEAD_DIM]
    value_cache,  # like key_cache
    slots,  # [batch, GROUPS, width]
    counts,  # [batch]
    prefix_lens,  # [batch]
    seq_lens,  # [batch]
    sinks,  # [heads]
    key_scale,  # [1]
    value_scale,  # [1]
    partial_out,  # [batch * KV_HEADS * SPLITS, DIM, COLUMNS], scratch
    partial_stats,  # [batch * KV_HEADS * SPLITS, 2, COLUMNS], scratch
    arrivals,  # [batch * KV_HEADS], 0 before and after
    scale,
    softcap,
    width,
    block_size,
    stride_out_row, stride_out_head, stride_query_row, stride_query_head,
    stride_key_block, stride_key_place, stride_key_head,
    stride_value_block, stride_value_place, stride_value_head,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,  # lists of slots per request: KV_HEADS or 1
    GROUP: tl.constexpr,  # query heads per KV head
    COLUMNS: tl.constexpr,  # GROUP, padded to a power of two
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,  # HEAD_DIM, padded to a power of two
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # 0: not a power of two
    SPLITS: tl.constexpr,
    SAME_STRIDES: tl.constexpr,  # of keys and values
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, KEY_SCALE: tl.constexpr, VALUE_SCALE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One program attends from one KV head's queries to one part of the request's list."""
    pair = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    request = pair // KV_HEADS
    head = pair % KV_HEADS
    column = tl.arange(0, COLUMNS)
    dim = tl.arange(0, DIM)
    lane = tl.arange(0, TILE)
    row = slots + (request * GROUPS + head % GROUPS).to(tl.int64) * width
    # A list that is not split begins at 0, so its first entries are read while the lengths are on their way.
    slot = tl.load(row + lane, mask=lane < width, other=0)
    prefix = tl.load(prefix_lens + request)
    seq_len = tl.load(seq_lens + request)
    length = tl.minimum(tl.minimum(tl.load(counts + request), prefix) + seq_len - prefix, width)
    length = tl.where((prefix > 0) & (seq_len > 0), length, 0)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    start = split * share
    stop = tl.minimum(start + share, length)
    parts = tl.cdiv(length, tl.maximum(share, 1))

    qk_scale = scale * _LOG2E
    out_scale = 1.0
    if KEY_SCALE:
        qk_scale = qk_scale * tl.load(key_scale)
    if VALUE_SCALE:
        out_scale = tl.load(value_scale)
    if start < stop:
        real = column < GROUP
        query_head = head * GROUP + column
        q = tl.load(
            query + (request.to(tl.int64) * stride_query_row + query_head * stride_query_head)[None, :] + dim[:, None],
            mask=real[None, :] & (dim < HEAD_DIM)[:, None],
            other=0.0,
        )
        key_base = key_cache + head.to(tl.int64) * stride_key_head
        value_base = value_cache + head.to(tl.int64) * stride_value_head
        acc = tl.zeros([DIM, COLUMNS], tl.float32)
        sums = tl.zeros([COLUMNS], tl.float32)
        reference = tl.full([COLUMNS], float("-inf"), tl.float32)
        if SPLITS > 1:
            slot = tl.load(row + start + lane, mask=start + lane < stop, other=0)
        for first in tl.range(start, stop, TILE, num_stages=STAGES):
            inside = first + lane < stop
            if BLOCK_SIZE > 0:
                block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
            else:
                block, place = slot // block_size, slot % block_size
            offset = token_offset(block, place, stride_key_block, stride_key_place)
            key = load_tile(key_base, offset, inside, HEAD_DIM, DIM)
            if not SAME_STRIDES:
                offset = token_offset(block, place, stride_value_block, stride_value_place)
            value = load_tile(value_base, offset, inside, HEAD_DIM, DIM)
            # The list is read a tile ahead: the cache's loads never wait for it.
            ahead = first + TILE + lane
            slot = tl.load(row + ahead, mask=ahead < stop, other=0)

            logits = capped(tl.dot(key.to(query.dtype.element_ty), q) * qk_scale, softcap, SOFTCAP)
            logits = tl.where(inside[:, None], logits, float("-inf"))
            peak = tl.maximum(reference, tl.max(logits, 0))
            weights = tl.exp2(logits - peak[None, :])
            shrink = tl.exp2(reference - peak)
            sums = sums * shrink + tl.sum(weights, 0)
            acc = acc * shrink[None, :]
            acc = tl.dot(tl.trans(value.to(query.dtype.element_ty)), weights.to(query.dtype.element_ty), acc)
            reference = peak

        finished = parts == 1
        if parts > 1:
            part = tl.program_id(0).to(tl.int64)
            tl.store(partial_out + part * DIM * COLUMNS + dim[:, None] * COLUMNS + column[None, :], acc)
            tl.store(partial_stats + part * 2 * COLUMNS + column, reference)
            tl.store(partial_stats + (part * 2 + 1) * COLUMNS + column, sums)
            tl.debug_barrier()  # every thread's part is written before it is announced
            finished = tl.atomic_add(arrivals + pair, 1, sem="acq_rel") == parts - 1
            if finished:
                tl.store(arrivals + pair, 0)
                acc, sums, reference = merge_parts(partial_out, partial_stats, pair * SPLITS, parts, DIM, COLUMNS)
        if finished:
            if SINKS:
                sink = tl.load(sinks + query_head, mask=real, other=0.0).to(tl.float32) * _LOG2E
                joint = tl.maximum(reference, sink)
                acc = acc * tl.exp2(reference - joint)[None, :]
                sums = sums * tl.exp2(reference - joint) + tl.exp2(sink - joint)
            result = acc * (out_scale / sums)[None, :]
            tl.store(
                out + (request.to(tl.int64) * stride_out_row + query_head * stride_out_head)[None, :] + dim[:, None],
                result.to(out.dtype.element_ty),
                mask=real[None, :] & (dim < HEAD_DIM)[:, None],
            )
