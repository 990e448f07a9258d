"""Plain decoding: no drafts, one token per forward pass. What everything is compared with."""

from __future__ import annotations

from vegas_spec.policies.dense import DensePolicy


class FullPolicy(DensePolicy):
    """No speculation."""

    name = "full"
    summary = "nothing is drafted"
    speculates = False
