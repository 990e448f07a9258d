"""The Triton kernel of `vegas_spec.ops.sparse_attention`; products are transposed as in `verify_kernel`.

A draft step is short, so what a tile costs beside its bytes decides. Logits are exponentiated as they are, without a
maximum: float32 and bfloat16 hold ``exp`` of anything between -60 and 60. If the sums say that this was not enough, the
program takes the exact maximum and repeats its part. float16 has no such range; it keeps a running maximum.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from vegas_spec.ops.tiles import LOG2E, capped, load_tile, merge_parts, token_offset


@triton.jit
def _slot_offset(slot, block_size, stride_block, stride_place, BLOCK_SIZE: tl.constexpr):
    """Distance of each slot's row from the head's first one, in elements."""
    if BLOCK_SIZE > 0:
        return token_offset(slot // BLOCK_SIZE, slot % BLOCK_SIZE, stride_block, stride_place)
    return token_offset(slot // block_size, slot % block_size, stride_block, stride_place)


@triton.jit
def _attend_list(
    acc, sums, reference,  # [DIM, COLUMNS], [TILE, COLUMNS], [COLUMNS] float32
    slot,  # [TILE] int32
    q,  # [DIM, COLUMNS]
    row, key_base, value_base,  # pointers to first entries: of the list, of the head in the caches
    start, stop, qk_scale, softcap, block_size,
    stride_key_block, stride_key_place, stride_value_block, stride_value_place,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SAME_STRIDES: tl.constexpr, SOFTCAP: tl.constexpr, ONLINE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the list's entries ``[start, stop)`` to the output and the sums; `slot` is their first tile."""
    lane = tl.arange(0, TILE)
    for first in tl.range(start, stop, TILE, num_stages=STAGES):
        inside = first + lane < stop
        offset = _slot_offset(slot, block_size, stride_key_block, stride_key_place, BLOCK_SIZE)
        key = load_tile(key_base, offset, inside, HEAD_DIM, DIM)
        if not SAME_STRIDES:
            offset = _slot_offset(slot, block_size, stride_value_block, stride_value_place, BLOCK_SIZE)
        value = load_tile(value_base, offset, inside, HEAD_DIM, DIM)
        # The list is read a tile ahead: the cache's loads never wait for it.
        ahead = first + TILE + lane
        slot = tl.load(row + ahead, mask=ahead < stop, other=0)

        logits = capped(tl.dot(key.to(q.dtype), q) * qk_scale, softcap, SOFTCAP)
        logits = tl.where(inside[:, None], logits, float("-inf"))
        # Costs a reduction across warps per tile, which is why only float16 has it: it holds exp of 11 at most.
        if ONLINE:
            peak = tl.maximum(reference, tl.max(logits, 0))
            shrink = tl.exp2(reference - peak)
            sums = sums * shrink[None, :]
            acc = acc * shrink[None, :]
            reference = peak
        weights = tl.exp2(logits - reference[None, :])
        sums += weights
        acc = tl.dot(tl.trans(value.to(q.dtype)), weights.to(q.dtype), acc)
    return acc, sums, reference


@triton.jit
def _maximum_of_list(
    q,  # [DIM, COLUMNS]
    row, key_base,  # pointers to first entries
    start, stop, qk_scale, softcap, block_size, stride_key_block, stride_key_place,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Largest logit of each column over the list's entries ``[start, stop)``."""
    peak = tl.full([q.shape[1]], float("-inf"), tl.float32)
    for first in tl.range(start, stop, TILE, num_stages=1):
        index = first + tl.arange(0, TILE)
        slot = tl.load(row + index, mask=index < stop, other=0)
        offset = _slot_offset(slot, block_size, stride_key_block, stride_key_place, BLOCK_SIZE)
        key = load_tile(key_base, offset, index < stop, HEAD_DIM, DIM)
        logits = capped(tl.dot(key.to(q.dtype), q) * qk_scale, softcap, SOFTCAP)
        peak = tl.maximum(peak, tl.max(tl.where((index < stop)[:, None], logits, float("-inf")), 0))
    return peak


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
    ONLINE: tl.constexpr,  # keep a running maximum; otherwise logits are taken as they are, and checked
    LIMIT: tl.constexpr,  # largest sum of weights that is trusted, and the smallest one's inverse
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,  # launched before the kernel ahead has ended
):  # fmt: skip
    """One program attends from one KV head's queries to one part of the request's list."""
    if EARLY:  # as in `verify_kernel`
        tl.extra.cuda.gdc_wait()
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
    # Whole tiles; the later of a short list's parts may then be empty, so there can be fewer parts than programs.
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    start = split * share
    stop = tl.minimum(start + share, length)
    parts = tl.cdiv(length, tl.maximum(share, 1))

    qk_scale = scale * LOG2E
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
        if SPLITS > 1:
            slot = tl.load(row + start + lane, mask=start + lane < stop, other=0)
        acc = tl.zeros([DIM, COLUMNS], tl.float32)
        sums = tl.zeros([COLUMNS], tl.float32)
        reference = tl.full([COLUMNS], float("-inf") if ONLINE else 0.0, tl.float32)
        attempt = 0  # at most two, as in `verify_kernel`
        while attempt < 2:
            acc = tl.zeros([DIM, COLUMNS], tl.float32)
            tile_sums = tl.zeros([TILE, COLUMNS], tl.float32)
            acc, tile_sums, reference = _attend_list(
                acc, tile_sums, reference, slot, q, row, key_base, value_base, start, stop,
                qk_scale, softcap, block_size,
                stride_key_block, stride_key_place, stride_value_block, stride_value_place,
                HEAD_DIM, DIM, TILE, BLOCK_SIZE, SAME_STRIDES, SOFTCAP, ONLINE, STAGES,
            )  # fmt: skip
            sums = tl.sum(tile_sums, 0)
            # Too small counts as well: the reference is 0, not an estimate, and weights far below 1 may have vanished.
            trusted = tl.min(tl.where((sums > 1.0 / LIMIT) & (sums < LIMIT), 1, 0), 0)
            attempt = tl.where(trusted == 1, 2, attempt + 1)
            if attempt == 1:
                reference = _maximum_of_list(
                    q, row, key_base, start, stop, qk_scale, softcap, block_size, stride_key_block, stride_key_place,
                    HEAD_DIM, DIM, TILE, BLOCK_SIZE, SOFTCAP,
                )  # fmt: skip

        finished = parts == 1
        if parts > 1:
            part = tl.program_id(0).to(tl.int64)
            tl.store(partial_out + part * DIM * COLUMNS + dim[:, None] * COLUMNS + column[None, :], acc)
            tl.store(partial_stats + part * 2 * COLUMNS + column, reference)
            tl.store(partial_stats + (part * 2 + 1) * COLUMNS + column, sums)
            # As in `verify_kernel`: written by every thread, then announced; the last one to do so sums all parts.
            tl.debug_barrier()
            finished = tl.atomic_add(arrivals + pair, 1, sem="acq_rel") == parts - 1
            if finished:
                tl.store(arrivals + pair, 0)
                acc, sums, reference = merge_parts(partial_out, partial_stats, pair * SPLITS, parts, DIM, COLUMNS)
        if finished:
            if SINKS:
                sink = tl.load(sinks + query_head, mask=real, other=0.0).to(tl.float32) * LOG2E
                joint = tl.maximum(reference, sink)  # a sink may lie far above a reference that knows nothing of it
                acc = acc * tl.exp2(reference - joint)[None, :]
                sums = sums * tl.exp2(reference - joint) + tl.exp2(sink - joint)
            result = acc * (out_scale / sums)[None, :]
            tl.store(
                out + (request.to(tl.int64) * stride_out_row + query_head * stride_out_head)[None, :] + dim[:, None],
                result.to(out.dtype.element_ty),
                mask=real[None, :] & (dim < HEAD_DIM)[:, None],
            )
