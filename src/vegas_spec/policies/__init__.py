"""Draft policies: one file each, one interface (`vegas_spec.policies.base.Policy`)."""

from __future__ import annotations

import importlib

from vegas_spec.config import ConfigError, VegasConfig, policy_paths
from vegas_spec.policies.base import Drafting, Policy, Queries, Room, ScoreRequest, Verified

__all__ = ["Drafting", "Policy", "Queries", "Room", "ScoreRequest", "Verified", "make_policy", "policy_class"]


def policy_class(policy: str) -> type[Policy]:
    """Import the class that a config's ``policy`` names; its attributes say what every part of Vegas asks of it.

    Raises
    ------
    ConfigError
        If it cannot be imported, or is no policy.

    """
    path = policy_paths().get(policy, policy)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # it is somebody's code, which may fail in any way
        raise ConfigError(f"policy {policy!r} cannot be imported from {path}: {error!r}") from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f"policy {policy!r} must be a subclass of vegas_spec.policies.Policy; got {path}, {found!r}")
    return found


def make_policy(config: VegasConfig) -> Policy:
    """Build the policy that ``config.policy`` names."""
    return policy_class(config.policy)(config)
