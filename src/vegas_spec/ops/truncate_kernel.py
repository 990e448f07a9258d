"""The Triton kernel of `truncate_logits`: one program per row, which finds its threshold by searching a grid."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _distance(base, offsets, vocab_size, scale, best):
    """How far tokens are below the best one, in units of the temperature: at most 0; -inf beyond the vocabulary."""
    logits = tl.load(base + offsets, mask=offsets < vocab_size, other=-float("inf")).to(tl.float32)
    return (logits - best) * scale


@triton.jit
def _search(base, vocab_size, scale, best, floor, wanted, REACH, STEP, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest point of the grid, from ``-REACH`` up in `STEP`, above which there is still as much as `wanted`.

    What is counted are tokens at or above both the point and `floor`, or their mass. Four ways at a time: six passes
    for 4096 points.
    """
    low = 0
    size = 1024
    for _ in range(6):
        first = (low + size) * STEP - REACH
        second = (low + 2 * size) * STEP - REACH
        third = (low + 3 * size) * STEP - REACH
        above_first = tl.zeros((BLOCK,), tl.float32)
        above_second = tl.zeros((BLOCK,), tl.float32)
        above_third = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            distance = _distance(base, start + tl.arange(0, BLOCK), vocab_size, scale, best)
            weight = tl.exp(distance) if BY_MASS else tl.full((BLOCK,), 1.0, tl.float32)
            weight = tl.where(distance >= floor, weight, 0.0)
            above_first += tl.where(distance >= first, weight, 0.0)
            above_second += tl.where(distance >= second, weight, 0.0)
            above_third += tl.where(distance >= third, weight, 0.0)
        low += size * (tl.sum(above_first) >= wanted).to(tl.int32)
        low += size * (tl.sum(above_second) >= wanted).to(tl.int32)
        low += size * (tl.sum(above_third) >= wanted).to(tl.int32)
        size = size // 4
    # Nothing was asked about the lowest point: there may be more below it.
    return tl.where(low > 0, low * STEP - REACH, -float("inf"))


@triton.jit
def truncate_kernel(
    logits,
    stride,
    states,
    temperature,
    top_k,
    top_p,
    min_p,
    vocab_size,
    REACH: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Truncate one row; nothing is read of a row whose request does not ask for it."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(states + row)
    base = logits + row * stride
    if state >= 0:
        heat = tl.load(temperature + state)
        count = tl.load(top_k + state)
        mass = tl.load(top_p + state)
        least = tl.load(min_p + state)
        if (heat > 0) & ((count < vocab_size) | (mass < 1) | (least > 0)):
            scale = 1 / heat
            highest = tl.full((BLOCK,), -float("inf"), tl.float32)
            for start in range(0, vocab_size, BLOCK):
                offsets = start + tl.arange(0, BLOCK)
                values = tl.load(base + offsets, mask=offsets < vocab_size, other=-float("inf")).to(tl.float32)
                highest = tl.maximum(highest, values)
            best = tl.max(highest)
            if best > -float("inf"):
                floor = -float("inf")
                if least > 0:
                    floor = tl.log(least)
                if count < vocab_size:
                    at = _search(
                        base, vocab_size, scale, best, -float("inf"), count.to(tl.float32), REACH, STEP, False, BLOCK
                    )
                    floor = tl.maximum(floor, at)
                if mass < 1:
                    summed = tl.zeros((BLOCK,), tl.float32)
                    for start in range(0, vocab_size, BLOCK):
                        distance = _distance(base, start + tl.arange(0, BLOCK), vocab_size, scale, best)
                        summed += tl.where(distance >= floor, tl.exp(distance), 0.0)
                    wanted = mass * tl.sum(summed)
                    at = _search(base, vocab_size, scale, best, floor, wanted, REACH, STEP, True, BLOCK)
                    floor = tl.maximum(floor, at)
                for start in range(0, vocab_size, BLOCK):
                    offsets = start + tl.arange(0, BLOCK)
                    distance = _distance(base, offsets, vocab_size, scale, best)
                    tl.store(base + offsets, -float("inf"), mask=(offsets < vocab_size) & (distance < floor))
