"""Draft policies: one file each, one interface (`vegas_spec.policies.base.Policy`)."""

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Drafting, Policy, Queries, ScoreRequest, Verified
from vegas_spec.policies.dense import DensePolicy
from vegas_spec.policies.full import FullPolicy
from vegas_spec.policies.oracle import OraclePolicy
from vegas_spec.policies.quest import QuestPolicy
from vegas_spec.policies.specextend import SpecExtendPolicy
from vegas_spec.policies.stream import StreamPolicy
from vegas_spec.policies.vegas import VegasPolicy

__all__ = ["Drafting", "Policy", "Queries", "ScoreRequest", "Verified", "make_policy"]

_BY_NAME: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (VegasPolicy, StreamPolicy, QuestPolicy, SpecExtendPolicy, OraclePolicy, DensePolicy, FullPolicy)
}


def make_policy(config: VegasConfig) -> Policy:
    """Build the policy that ``config.policy`` names."""
    return _BY_NAME[config.policy](config)
