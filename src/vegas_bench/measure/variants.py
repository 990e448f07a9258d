"""The settings that a measurement compares: policies x budgets x gammas, by the names that a user gives them."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vegas_spec.config import ConfigError, VegasConfig, check_choice, invalid, policy_paths, reject_unknown
from vegas_spec.policies import policy_class


@dataclass(frozen=True)
class Variant:
    """A config and what to call its policy in tables: ``vegas``, ``vegas:rows=all``."""

    label: str
    config: VegasConfig

    @property
    def key(self) -> str:
        """Identifies it among the variants of a run."""
        if self.config.policy == "full":
            return self.label
        budget = "" if self.reads_everything else f" budget={self.config.kv_budget:g}"
        return f"{self.label} gamma={self.config.num_speculative_tokens}{budget}"

    @property
    def reads_everything(self) -> bool:
        """Whether its drafts, if any, read the whole cache, so that a budget has no meaning."""
        return self.config.policy in ("dense", "full")


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name:option=value:option=value``, the name perhaps a ``module:Class``; give label and options.

    The options are those of `VegasConfig`.

    Raises
    ------
    ConfigError
        For an unknown policy or option, or a value of the wrong kind.

    """
    name, *pairs = text.split(":")
    if name not in policy_paths() and pairs and "=" not in pairs[0]:  # module:Class
        name = f"{name}:{pairs.pop(0)}"
        policy_class(name)
    else:
        check_choice("policy", name, policy_paths())
    hints = typing.get_type_hints(VegasConfig)
    options: dict[str, Any] = {"policy": name}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"a policy is written name:option=value:option=value; got {pair!r} in {text!r}")
        reject_unknown([option], [known for known in hints if known != "policy"], "option")
        options[option] = _value(option, value, hints[option])
    return text, options


def variants(
    policies: Sequence[str],
    budgets: Sequence[float] = (VegasConfig.kv_budget,),
    gammas: Sequence[int] = (VegasConfig.num_speculative_tokens,),
    *,
    one_at_a_time: bool = False,
    **options: Any,
) -> list[Variant]:
    """List the settings of a run, each once.

    Parameters
    ----------
    policies : sequence of str
        As `parse_policy` reads them.
    budgets, gammas : sequence
        Values of ``kv_budget`` and ``num_speculative_tokens``, unless a policy's own text says them.
    one_at_a_time : bool
        Instead of all combinations: the first budget and gamma, then the others of each with the first of the other.
    **options
        Of `VegasConfig`, for all.

    Raises
    ------
    ConfigError
        If a value is not allowed.

    """
    pairs = list(itertools.product(gammas, budgets))
    if one_at_a_time:
        pairs = [(gammas[0], budget) for budget in budgets] + [(gamma, budgets[0]) for gamma in gammas[1:]]
    found: dict[str, Variant] = {}
    for label, own in map(parse_policy, policies):
        for gamma, budget in pairs:
            chosen = {**options, "num_speculative_tokens": gamma, "kv_budget": budget, **own}
            variant = Variant(label, VegasConfig.from_dict(chosen))
            if variant.reads_everything:
                variant = Variant(label, dataclasses.replace(variant.config, kv_budget=1.0))
            if variant.config.policy == "full":
                variant = Variant(label, dataclasses.replace(variant.config, num_speculative_tokens=1))
            found.setdefault(variant.key, variant)
    return list(found.values())


def _value(option: str, text: str, hint: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind, allowed in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise invalid(option, allowed, text) from None
    if bool in kinds:
        check_choice(option, text, ("true", "false"))
        return text == "true"
    return text
