"""An oracle: every draft step reads the entries that its own query wants most. What selection could reach at best."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.policies.base import Policy, Queries, Verified
from vegas_spec.selection import query_key_logits, score_rows, select_positions


class OraclePolicy(Policy):
    """The exact ``budget`` best positions by the draft step's own query, per layer and group.

    It reads every key to find them, so it saves nothing: it shows what is lost by choosing before the query is known.
    """

    name = "oracle"
    changes_per_step = True

    def select(self, verified: Verified) -> None:
        """Nothing is known before a step's query is."""
        return

    def select_step(self, layer: int, slot: int, queries: Queries, keys: Tensor, prefix_len: int) -> Tensor:
        """See `Policy.select_step`; scored as `vegas_spec.selection.score_rows` says, over all that the row sees."""
        logits = query_key_logits(queries.query, keys, queries.scale)
        scores = score_rows(logits, None, keys.shape[0], self.config.score, self.config.granularity, queries.sinks)
        counts = torch.tensor([[prefix_len], [self.config.budget(prefix_len)]], device=keys.device)
        return select_positions(scores[None, :, :prefix_len], counts[0], counts[1])[0]
