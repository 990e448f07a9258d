"""Dense drafting: every draft step reads all of the cache. The upper bound of acceptance; it saves nothing."""

from __future__ import annotations

from vegas_spec.config import Count
from vegas_spec.policies.base import Policy, Verified


class DensePolicy(Policy):
    """All of the prefix."""

    name = "dense"
    summary = "the whole context"
    selects = False
    bound = True

    def num_entries(self, prefix_len: Count, budget: Count) -> Count:
        """All of them."""
        return prefix_len

    def select(self, verified: Verified) -> None:
        """Nothing is left out."""
        return
