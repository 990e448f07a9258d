"""The Triton kernel of `vegas_spec.ops.plan`."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from vegas_spec.ops import record
from vegas_spec.ops.levels import SCORE_ALIGNMENT

RECORDS = 16
"""Records that one program writes. Chosen by hand."""

_RECORDS = tl.constexpr(RECORDS)
_ALIGNMENT = tl.constexpr(SCORE_ALIGNMENT)


@triton.jit
def plan_kernel(
    query_start_loc,  # [batch + 1]
    seq_lens,  # [batch]
    tile_starts,  # [max_requests + 1], written
    programs,  # [PROGRAMS, record.LENGTH], written
    prefix_lens,  # [max_requests], written
    score_offsets,  # [max_requests], written
    dropped,  # [1], added to
    batch,
    score_capacity,
    window,  # 0: none
    TILE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BATCH: tl.constexpr,  # batch, padded to a power of two
    SLACK: tl.constexpr,
):
    """Every program lays out the whole batch; the first one writes that, and each the records of 16 programs.

    A batch is a few hundred numbers: laying it out anew is cheaper than waiting for a program that has done so. What is
    computed is defined by `VerifyPlan.reference`.
    """
    request = tl.arange(0, BATCH)
    inside = request < batch
    row_start = tl.load(query_start_loc + request, mask=inside, other=0)
    query_len = tl.load(query_start_loc + request + 1, mask=inside, other=0) - row_start
    seq_len = tl.load(seq_lens + request, mask=inside, other=0)
    active = (query_len > 0) & (seq_len > 0)
    prefix = tl.where(active, seq_len - query_len + 1, 0)
    # Tiles that a window hides from the first row are hidden from all, and are no work.
    first = tl.where(window > 0, tl.maximum(seq_len - query_len - window + 1, 0) // TILE, 0)
    tiles = tl.where(active, (seq_len + TILE - 1) // TILE - first, 0)
    ends = tl.cumsum(tiles, 0)
    room = (prefix + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    # What does not fit counts all the same, so nothing after it fits: one scan decides. To fill the gap takes a loop.
    offsets_end = tl.cumsum(room, 0)
    fits = offsets_end <= score_capacity
    score_offset = tl.where(active & fits, offsets_end - room, -1)
    if tl.program_id(0) == 0:
        tl.store(tile_starts + request + 1, ends, mask=inside)
        tl.store(prefix_lens + request, prefix, mask=inside)
        tl.store(score_offsets + request, score_offset, mask=inside)
        if score_capacity > 0:
            lost = tl.sum((active & (fits == 0)).to(tl.int32), 0)
            # Only this program adds, and kernels of a stream run one after another: no atomic is needed.
            tl.store(dropped, tl.load(dropped) + lost)

    units = tl.sum(tiles, 0) * KV_HEADS
    pairs = tl.sum((tiles > 0).to(tl.int32), 0) * KV_HEADS
    # Equal shares of all tiles, or shares that end where heads end: equal parts of the longest head where there are
    # programs enough, whole heads where there are not. The programs of a request's heads then read the same tokens at
    # the same time, which is worth some idle time at the end.
    even = tl.cdiv(units, PROGRAMS)
    splits = PROGRAMS // tl.maximum(pairs, 1)
    longest = tl.max(tiles, 0)
    whole = tl.where(splits > 0, tl.cdiv(longest, tl.maximum(splits, 1)), tl.cdiv(pairs, PROGRAMS) * longest)
    aligned = whole * 100 <= even * (100 + SLACK)
    share = tl.where(aligned, whole, even)
    # More heads than programs, of the same length: a program's heads lie one round apart, so that in each round the
    # programs are at the heads of the same few requests. Padding must not lie between them: the walk goes to the next
    # request without looking where its tiles begin.
    requests = tl.sum((tiles > 0).to(tl.int32), 0)
    leading = tl.sum(((tiles > 0) & (request < requests)).to(tl.int32), 0) == requests
    same = tl.min(tl.where(tiles > 0, tiles, longest), 0) == longest
    rounds = tl.cdiv(pairs, PROGRAMS)
    in_rounds = aligned & leading & same & (rounds > 1)
    step = tl.where(in_rounds, tl.cdiv(pairs, tl.maximum(rounds, 1)), 0)
    program = tl.program_id(0) * _RECORDS + tl.arange(0, _RECORDS)
    start = tl.where(in_rounds, program * longest, program * share)
    own_rounds = tl.where(program < step, tl.cdiv(pairs - program, tl.maximum(step, 1)), 0)
    count = tl.where(in_rounds, own_rounds * longest, tl.minimum(share, units - start))
    # Padding entries repeat the last end, so they never lie before a program that has work.
    begins = (ends * KV_HEADS)[None, :] <= start[:, None]
    first_request = tl.sum(begins.to(tl.int32), 1)
    # Picked out by a sum over the batch, whose numbers are spread over the registers of many threads.
    here = request[None, :] == first_request[:, None]
    own = programs + program * record.LENGTH
    mask = program < PROGRAMS
    begin = tl.sum(tl.where(here, ((ends - tiles) * KV_HEADS)[None, :], 0), 1)
    per_head = tl.sum(tl.where(here, tiles[None, :], 0), 1)
    head = (start - begin) // tl.maximum(per_head, 1)
    tl.store(own + record.REQUEST, first_request, mask=mask)
    tl.store(own + record.HEAD, head, mask=mask)
    tl.store(own + record.TILE, start - begin - head * per_head, mask=mask)
    tl.store(own + record.UNITS, count, mask=mask)
    tl.store(own + record.TILES, per_head, mask=mask)
    tl.store(own + record.HEAD_START, begin + head * per_head, mask=mask)
    tl.store(own + record.ROW_START, tl.sum(tl.where(here, row_start[None, :], 0), 1), mask=mask)
    tl.store(own + record.QUERY_LEN, tl.sum(tl.where(here, query_len[None, :], 0), 1), mask=mask)
    tl.store(own + record.SEQ_LEN, tl.sum(tl.where(here, seq_len[None, :], 0), 1), mask=mask)
    tl.store(own + record.SCORE_OFFSET, tl.sum(tl.where(here, score_offset[None, :], 0), 1), mask=mask)
    tl.store(own + record.SHARE, share, mask=mask)
    tl.store(own + record.STEP, step, mask=mask)
