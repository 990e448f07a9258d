"""The method as its paper states it, to compare with: by default `vegas` scores otherwise, and is accepted more."""

from __future__ import annotations

from typing import ClassVar

from vegas_spec.config import Rows
from vegas_spec.policies.base import ScoreRequest
from vegas_spec.policies.vegas import VegasPolicy


class PaperPolicy(VegasPolicy):
    """Raw logits of all verified rows, one set for all heads of a layer (arXiv 2602.07223).

    ``T = argmax sum_t sum_h sum_{i in T} l[t, h, i]`` with ``|T|`` the budget, whatever the config says of scores.
    """

    name = "paper"
    summary = "the entries of the largest logits in the last verification, one set for all heads"
    rows: ClassVar[Rows] = "all"

    @property
    def score_request(self) -> ScoreRequest:
        """See `Policy.score_request`."""
        return ScoreRequest(rows=self.rows, score="logit", granularity="layer", lookahead=0.0)


class PaperEndsPolicy(PaperPolicy):
    """The same of the first and the last row alone (Collect-2-Query)."""

    name = "paper-ends"
    rows = "ends"
