"""Vegas: verification has just computed every query-key logit, so it names what the next draft reads."""

from __future__ import annotations

from torch import Tensor

from vegas_spec.config import Granularity
from vegas_spec.policies.base import Policy, ScoreRequest, Verified
from vegas_spec.selection import look_ahead, select_positions


class VegasPolicy(Policy):
    """The best-scored ``budget`` positions of the prefix, per layer and group (arXiv 2602.07223, Collect-2-Query)."""

    name = "vegas"
    summary = "the entries that the last verification scored best"
    scores = True

    @property
    def sets(self) -> Granularity:
        """See `Policy.sets`."""
        return self.score_request.granularity

    @property
    def score_request(self) -> ScoreRequest:
        """See `Policy.score_request`."""
        return ScoreRequest.of(self.config)

    def select(self, verified: Verified) -> Tensor:
        """See `Policy.select`; the definition is `vegas_spec.selection.select_positions`."""
        if verified.scores is None:
            raise TypeError("the vegas policy selects by scores, and verification collected none")
        scores, decay = verified.scores, self.score_request.lookahead
        if decay:
            scores = look_ahead(scores, decay)
        return select_positions(scores, verified.prefix_lens, verified.budgets)
