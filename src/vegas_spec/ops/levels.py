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

import torch
from torch import Tensor

from vegas_spec.config import Score

LEVELS = 4096
STEPS: dict[Score, int] = {"weight": 64, "logit": 32}
FLOOR: dict[Score, int] = {"weight": -52, "logit": -96}


def to_levels(x: Tensor, score: Score) -> Tensor:
    """Levels of log2-domain scores `x`, int16, same shape; NaN and -inf become 0."""
    scaled = ((x - FLOOR[score]) * STEPS[score]).nan_to_num(nan=0.0).clamp(0, LEVELS - 1)
    return scaled.floor().to(torch.int16)
