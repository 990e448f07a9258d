"""Draft policies: one file each, one interface (`vegas_spec.policies.base.Policy`)."""

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Policy, ScoreRequest
from vegas_spec.policies.dense import DensePolicy
from vegas_spec.policies.full import FullPolicy
from vegas_spec.policies.vegas import VegasPolicy

__all__ = ["Policy", "ScoreRequest", "make_policy"]

_BY_NAME: dict[str, type[Policy]] = {policy.name: policy for policy in (VegasPolicy, DensePolicy, FullPolicy)}


def make_policy(config: VegasConfig) -> Policy:
    """Build the policy that ``config.policy`` names."""
    return _BY_NAME[config.policy](config)
