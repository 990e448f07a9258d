"""A policy of one's own, as docs/policies.md has it: one class, and no line anywhere else."""

import torch

from vegas_spec.policies import Policy, Verified
from vegas_spec.selection import NO_POSITION


class EveryOther(Policy):
    """Positions at equal distances over the whole prefix, the same for all layers and heads."""

    name = "every-other"
    summary = "positions at equal distances"
    sets = "model"

    def select(self, verified: Verified) -> torch.Tensor:
        """``position[j] = j * prefix_len // budget`` for ``j < budget``."""
        column = torch.arange(verified.width, device=verified.prefix_lens.device)
        counts = verified.budgets[:, None]
        positions = column * verified.prefix_lens[:, None] // counts.clamp(min=1)
        return torch.where(column < counts, positions, NO_POSITION)[None, :, None]


class Rescored(Policy):
    """Scores, but chooses by them in a way of its own: what vLLM's kernels cannot do."""

    name = "rescored"
    summary = "the worst-scored entries"
    scores = True

    def select(self, verified: Verified) -> torch.Tensor:
        """The first ones."""
        return EveryOther(self.config).select(verified)
