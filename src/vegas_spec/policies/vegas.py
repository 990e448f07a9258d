"""Vegas: verification has just computed every query-key logit, so it names what the next draft reads."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.policies.base import Policy, Verified
from vegas_spec.selection import select_positions


class VegasPolicy(Policy):
    """The best-scored ``budget`` positions of the prefix, per layer and group (arXiv 2602.07223, Collect-2-Query)."""

    name = "vegas"
    summary = "the entries that the last verification scored best"
    scores = True

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`; the definition is `vegas_spec.selection.select_positions`."""
        if verified.scores is None:
            raise TypeError("the vegas policy selects by scores, and verification collected none")
        prefix_lens = torch.tensor(verified.prefix_lens, device=verified.scores.device)
        return select_positions(verified.scores, prefix_lens, self.config.budget(prefix_lens))
