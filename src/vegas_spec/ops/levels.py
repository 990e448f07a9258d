"""Score levels: the 12 bits per key that verification stores and selection ranks by.

A score is kept as an integer level of its logarithm, so that the precision is the same over the whole range and the
level is at once a sort key and a histogram bin:

``level = clamp(floor((x - FLOOR) * STEPS), 0, LEVELS - 1)``, and 0 for NaN, where ``x`` is

- ``weight``: ``log2`` of the summed softmax weights. 64 levels an octave: neighbouring levels differ by 1.1 % in weight
  (a bfloat16 logit of 16 to 32 is known to 6 %), and 64 octaves are covered, from ``2^-52`` to ``2^12``.
- ``logit``: the mean raw logit of the chosen rows and heads, in units of ``log2``, relative to the largest one of the
  sample (see `vegas_spec.ops.verify_attention`). 32 levels an octave, 128 octaves, 96 of them below the anchor.

Neither offset changes an order within a row, and order is all that selection uses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vegas_spec.config import Score

# Stored as int16, the smallest type that holds them: scoring writes 2 bytes per key and KV head. The sign is free, so
# selection marks by -1 what lies outside of a row. More levels would be more counters to sum for every part: 16 KB now.
LEVELS = 4096
# Finer steps would order what bfloat16 cannot tell apart, coarser ones would leave more to ties, which go by position.
# Downwards a weight of 2^-52 is nothing beside the others; upwards 128 rows and heads add up to 2^7, and an estimate
# may be too low.
STEPS: dict[Score, int] = {"weight": 64, "logit": 32}
FLOOR: dict[Score, int] = {"weight": -52, "logit": -96}

SCORE_ALIGNMENT = 16
"""A request's scores start at a multiple of this many entries and are padded to one, so that threads read whole vectors
of 8 without a mask inside; 16 are 32 bytes, the least that memory hands out, so no two requests share a sector."""


def to_levels(x: Tensor, score: Score) -> Tensor:
    """Levels of log2-domain scores `x`, int16, same shape; NaN and -inf become 0."""
    scaled = ((x - FLOOR[score]) * STEPS[score]).nan_to_num(nan=0.0).clamp(0, LEVELS - 1)
    return scaled.floor().to(torch.int16)


def decay_levels(lookahead: float) -> int:
    """Levels that a score loses from one key to the next, ``round(64 log2(1 / lookahead))``; 0 where it does not flow.

    A whole number, so that ``level(d^j s) = level(s) - j * decay`` holds exactly. Of 0.5 it is 64; others become
    ``2^(-decay / 64)``, which is at most 0.6 % away.
    """
    return max(1, round(-STEPS["weight"] * math.log2(lookahead))) if lookahead else 0
