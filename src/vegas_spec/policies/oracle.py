"""An oracle: every draft step reads the entries that its own query wants most. What selection could reach at best."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vegas_spec.config import Granularity
from vegas_spec.policies.base import Drafting, Policy, Verified
from vegas_spec.selection import query_key_logits, score_rows, select_positions


class OraclePolicy(Policy):
    """The exact ``budget`` best positions by the draft step's own query, per layer and group.

    It reads every key to find them, so it saves nothing: it shows what is lost by choosing before the query is known.
    """

    name = "oracle"
    summary = "the entries that each step's own query wants most"
    per_step = True
    bound = True
    in_vllm = False

    @property
    def sets(self) -> Granularity:
        """See `Policy.sets`."""
        return self.config.granularity

    def select(self, verified: Verified) -> None:
        """Nothing is known before a step's query is."""
        return

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        """See `Policy.select_step`; scored as `vegas_spec.selection.score_rows` says, over all that the row sees."""
        config, queries = self.config, drafting.queries
        scores = []
        for place, (seen, prefix_len) in enumerate(
            zip(drafting.seq_lens.tolist(), drafting.prefix_lens.tolist(), strict=True)
        ):
            keys = torch.cat(list(drafting.keys.read(place, seen)), dim=1)
            logits = query_key_logits(queries.query[:, place : place + 1], keys, queries.scale)
            own = score_rows(logits, None, keys.shape[0], config.score, config.granularity, queries.sinks)
            scores.append(own[:, :prefix_len].t())
        padded = pad_sequence(scores, batch_first=True).transpose(1, 2)  # [batch, groups, keys]
        return select_positions(padded, drafting.prefix_lens, drafting.budgets)
