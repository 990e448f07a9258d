"""MagicDec-Stream: drafts read the first entries and the latest ones; nothing is scored."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.policies.base import Policy, Verified
from vegas_spec.selection import NO_POSITION

NUM_SINKS = 16
"""Positions at the start that are always kept: they take much of the attention weight (arXiv 2309.17453)."""


class StreamPolicy(Policy):
    """The first 16 positions and the latest ones, ``budget`` together, the same for all layers and heads.

    StreamingLLM's cache (arXiv 2309.17453) as the draft's, as MagicDec does it (arXiv 2408.11049).
    """

    name = "stream"
    summary = "the first and the latest tokens"

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`."""
        device = verified.keys[0].device
        budgets = [self.config.budget(length) for length in verified.prefix_lens]
        lengths, counts = torch.tensor([verified.prefix_lens, budgets], device=device)[..., None]
        column = torch.arange(max(budgets), device=device)
        latest = lengths - counts + column
        positions = torch.where(column < NUM_SINKS, column, latest)
        return positions.masked_fill(column >= counts, NO_POSITION)[None, :, None]
