"""The settings that a measurement compares: policies x budgets x gammas, by the names that a user gives them."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vegas_spec.config import ConfigError, VegasConfig, check_choice, invalid, policy_paths, reject_unknown
from vegas_spec.policies import policy_class

NOTHING: Mapping[str, Any] = types.MappingProxyType({})


@dataclass(frozen=True)
class Variant:
    """One side of a comparison.

    Attributes
    ----------
    label : str
        What its policy is called in tables: ``vegas``, ``vegas:rows=all``.
    config : VegasConfig
        Its options of the method.
    beside : mapping
        Its options that are none of the method, but of the engine that it runs in.

    """

    label: str
    config: VegasConfig
    beside: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Identifies it among the variants of a run."""
        policy = policy_class(self.config.policy)
        if not policy.speculates:
            return self.label
        budget = f" budget={self.config.kv_budget:g}" if policy.selects else ""
        return f"{self.label} gamma={self.config.num_speculative_tokens}{budget}"

    def entries(self, lengths: Sequence[int], max_tokens: int) -> bytes:
        """Tell what its drafts read while prompts of these lengths grow by `max_tokens`: equal for equal budgets."""
        prefixes = np.unique(np.add.outer(lengths, np.arange(max_tokens + 1)))
        return self.config.budget(prefixes).tobytes()


def split_label(text: str) -> tuple[str, dict[str, str]]:
    """Read ``name`` or ``name:option=value:option=value``; the name may be a policy's path, ``module:Class``.

    Raises
    ------
    ConfigError
        If what follows the name are no options.

    """
    name, *pairs = text.split(":")
    if name not in policy_paths() and pairs and "=" not in pairs[0]:
        name = f"{name}:{pairs.pop(0)}"
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"a policy is written name:option=value:option=value; got {pair!r} in {text!r}")
    return name, {option: value for option, _, value in (pair.partition("=") for pair in pairs)}


def read_options(given: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Turn options' texts into values.

    Parameters
    ----------
    given : mapping
        Texts by option.
    kinds : mapping
        Annotations by option, of those that are allowed.

    Raises
    ------
    ConfigError
        For an unknown option, or a value of the wrong kind.

    """
    reject_unknown(list(given), list(kinds), "option")
    return {option: _value(option, text, kinds[option]) for option, text in given.items()}


def variants(
    policies: Sequence[str],
    budgets: Sequence[float] = (VegasConfig.kv_budget,),
    gammas: Sequence[int] = (VegasConfig.num_speculative_tokens,),
    *,
    one_at_a_time: bool = False,
    beside: Mapping[str, Any] = NOTHING,
    **options: Any,
) -> list[Variant]:
    """List the settings of a run, each once.

    Parameters
    ----------
    policies : sequence of str
        As `split_label` reads them.
    budgets, gammas : sequence
        Values of ``kv_budget`` and ``num_speculative_tokens``, unless a policy's own text says them.
    one_at_a_time : bool
        Instead of all combinations: the first budget and gamma, then the others of each with the first of the other.
    beside : mapping
        Values of the engine's own options, which a policy's text may set too.
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
    kinds = {name: hint for name, hint in typing.get_type_hints(VegasConfig).items() if name != "policy"}
    kinds |= {name: type(value) for name, value in beside.items()}
    found: dict[str, Variant] = {}
    for label in policies:
        name, texts = split_label(label)
        own = read_options(texts, kinds)
        mine = {**beside, **{option: own.pop(option) for option in beside if option in own}}
        for gamma, budget in pairs:
            chosen = {**options, "num_speculative_tokens": gamma, "kv_budget": budget, **own, "policy": name}
            config, policy = VegasConfig.from_dict(chosen), policy_class(name)
            if not policy.selects:
                config = dataclasses.replace(config, kv_budget=1.0)
            if not policy.speculates:
                config = dataclasses.replace(config, num_speculative_tokens=1)
            variant = Variant(label, config, mine if policy.speculates else {})
            found.setdefault(variant.key, variant)
    return list(found.values())


def without_equals(compared: Sequence[Any], lengths: Sequence[int], max_tokens: int) -> tuple[list[Any], list[str]]:
    """Leave out variants whose budget comes to as many entries as that of one before, at every length.

    Parameters
    ----------
    compared : sequence
        What is to be measured: variants, and what else there may be.
    lengths : sequence of int
        Prompt tokens.
    max_tokens : int
        Of each output.

    Returns
    -------
    (list, list of str)
        What is left, and a sentence for each that is not.

    """
    kept: dict[Any, Variant] = {}
    notes = []
    for variant in compared:
        if not isinstance(variant, Variant):
            kept[variant.key] = variant
            continue
        rest = dataclasses.replace(variant.config, kv_budget=1.0)
        same = kept.setdefault((variant.label, rest, variant.entries(lengths, max_tokens)), variant)
        if same is not variant:
            notes.append(
                f"{variant.label}: a budget of {variant.config.kv_budget:g} comes to the same entries as "
                f"{same.config.kv_budget:g} here (kv_budget_min is {variant.config.kv_budget_min}); it is measured once"
            )
    return list(kept.values()), notes


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
