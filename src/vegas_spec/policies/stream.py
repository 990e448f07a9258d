"""MagicDec-Stream: drafts read the first entries and the latest ones; nothing is scored."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vegas_spec.policies.base import Policy, Verified
from vegas_spec.selection import FIRST_POSITIONS, NO_POSITION


class StreamPolicy(Policy):
    """The first 16 positions and the latest ones, ``budget`` together, the same for all layers and heads.

    StreamingLLM's cache (arXiv 2309.17453) as the draft's, as MagicDec does it (arXiv 2408.11049).
    """

    name = "stream"
    summary = "the first and the latest tokens"
    sets: Literal["model"] = "model"

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`."""
        lengths, counts = verified.prefix_lens[:, None], verified.budgets[:, None]
        column = torch.arange(verified.width, device=lengths.device)
        positions = torch.where(column < FIRST_POSITIONS, column, lengths - counts + column)
        return positions.masked_fill(column >= counts, NO_POSITION)[None, :, None]
