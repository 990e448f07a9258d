"""Dense drafting: every draft step reads all of the cache. The upper bound of acceptance; it saves nothing."""

from __future__ import annotations

from torch import Tensor

from vegas_spec.policies.base import Policy


class DensePolicy(Policy):
    """All of the prefix."""

    name = "dense"

    def select(self, scores: Tensor | None, prefix_lens: Tensor) -> None:
        """Nothing is left out."""
        return
