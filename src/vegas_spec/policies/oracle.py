"""An oracle: every draft step reads the entries that its own query wants most. What selection could reach at best."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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

    def select(self, verified: Verified) -> None:
        """Nothing is known before a step's query is."""
        return

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        """See `Policy.select_step`; scored as `vegas_spec.selection.score_rows` says, over all that the row sees."""
        config, queries, device = self.config, drafting.queries, drafting.keys.device
        scores = []
        for place, (slot, prefix_len) in enumerate(zip(drafting.slots, drafting.prefix_lens, strict=True)):
            keys = drafting.keys[slot, :, : drafting.seq_lens[place]]
            logits = query_key_logits(queries.query[:, place : place + 1], keys, queries.scale)
            own = score_rows(logits, None, keys.shape[0], config.score, config.granularity, queries.sinks)
            scores.append(own[:, :prefix_len].t())
        padded = pad_sequence(scores, batch_first=True).transpose(1, 2)  # [batch, groups, keys]
        prefix_lens = torch.tensor(drafting.prefix_lens, device=device)
        return select_positions(padded, prefix_lens, config.budget(prefix_lens))
