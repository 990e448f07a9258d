"""Every option of the method, in one frozen dataclass, validated once."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar, get_args

Score = Literal["weight", "logit"]
Rows = Literal["ends", "all", "last"]
Granularity = Literal["kv_head", "layer"]
Count = TypeVar("Count")
"""An int, or integers in a NumPy array or a tensor."""

POLICIES: dict[str, str] = {
    "vegas": "vegas_spec.policies.vegas:VegasPolicy",
    "dense": "vegas_spec.policies.dense:DensePolicy",
    "full": "vegas_spec.policies.full:FullPolicy",
    "stream": "vegas_spec.policies.stream:StreamPolicy",
    "quest": "vegas_spec.policies.quest:QuestPolicy",
    "specextend": "vegas_spec.policies.specextend:SpecExtendPolicy",
    "oracle": "vegas_spec.policies.oracle:OraclePolicy",
    "paper": "vegas_spec.policies.paper:PaperPolicy",
    "paper-ends": "vegas_spec.policies.paper:PaperEndsPolicy",
}
"""Policies by name, and where their classes are; a new one of ours is a file there and a line here."""

POLICY_GROUP = "vegas_spec.policies"
"""Entry points by which other packages bring policies."""

MAX_SPECULATIVE_TOKENS = 16
"""Most drafts of an iteration, for either engine. Chosen by hand."""

_MILLION = 1_000_000  # a budget's share is a whole number of millionths, exact in any backend's integers


@functools.cache
def policy_paths() -> dict[str, str]:
    """``module:Class`` by name, of all policies that this Python has: `POLICIES`, and those of other packages."""
    return POLICIES | {each.name: each.value for each in entry_points(group=POLICY_GROUP) if each.name not in POLICIES}


class ConfigError(ValueError):
    """An option is unknown or its value is not allowed; the message says which, what is allowed and what was given."""


def invalid(option: str, allowed: str, got: object) -> ConfigError:
    """Build the error about an option's value: the one form that such a message has."""
    return ConfigError(f"{option} must be {allowed}; got {got!r}")


def reject_unknown(given: Sequence[str], known: Sequence[str], kind: str) -> None:
    """Raise a `ConfigError` for the first of `given` that is not in `known`, with the nearest known name."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


def check_int(option: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but an int in ``[low, high]`` (bool is not an int here)."""
    allowed = f"an integer from {low} to {high}" if high is not None else f"an integer of at least {low}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise invalid(option, allowed, value)


def check_choice(option: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of `choices`."""
    choices = list(choices)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"{invalid(option, 'one of ' + ', '.join(choices), value)}{hint}")


@dataclass(frozen=True, kw_only=True)
class VegasConfig:
    """What is drafted, over which KV entries, and how verification scores them.

    The same options, under the same names, are flags of the command, keyword arguments of `vegas_spec.LLM` and keys of
    vLLM's ``--speculative-config``.

    Parameters
    ----------
    num_speculative_tokens : int
        ``gamma``, drafted tokens per iteration, 1 to 16. Its default and that of ``kv_budget`` were chosen by hand;
        docs/acceptance.md compares others, and `vegas tune` finds those of a workload.
    policy : str
        Who chooses the KV entries that drafting reads: ``vegas`` (the previous verification), ``dense`` (all of them;
        the upper bound of acceptance), ``full`` (no speculation: plain decoding). Baselines to compare with:
        ``stream`` (the first and the latest), ``quest`` (pages, at each draft step), ``specextend`` (chunks, at every
        8th iteration), ``oracle`` (the best, known by reading all; embedded engine only), ``paper`` and
        ``paper-ends`` (the method as published). Another package's by its entry point's name, or any class by its path,
        ``module:Class``. ``docs/policies.md`` has more.
    kv_budget : float
        Share of the prefix that a draft step reads per layer, in (0, 1]. Resolved to millionths, so that every backend
        computes the same integer budget.
    kv_budget_min, kv_budget_max : int, int or None
        Bounds of the budget in KV entries, in tokens.
    score : {"weight", "logit"}
        What verification sums per key: softmax weights, or raw logits.
    rows : {"ends", "all", "last"}
        Which verified rows are summed: the first and the last (Collect-2-Query), all of them, or the last accepted one
        (embedded engine only: acceptance is not known inside a forward pass).
    granularity : {"kv_head", "layer"}
        One set of positions per KV head, or one shared by all heads of a layer.
    lookahead : float
        Decay ``d`` by which a key's score flows to the keys that follow it, in [0, 1): a text that copies or cites
        walks forward through its source. 0 switches it off. For ``score="weight"``; the definition is
        `vegas_spec.selection.look_ahead`.
    adaptive : bool
        Online mode: drafts per iteration, and in the embedded engine the budget, adapt to what is accepted and to what
        it takes; ``num_speculative_tokens`` and ``kv_budget`` are then the most.

    Raises
    ------
    ConfigError
        If a value is not allowed; the message names the option, what is allowed and what was given.

    """

    num_speculative_tokens: int = 6
    policy: str = "vegas"
    kv_budget: float = 0.05
    kv_budget_min: int = 256
    kv_budget_max: int | None = None
    score: Score = "weight"
    rows: Rows = "ends"
    granularity: Granularity = "kv_head"
    lookahead: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_int("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_SPECULATIVE_TOKENS)
        # A path is code that somebody named; it is imported where the policy is made.
        if not isinstance(self.policy, str) or ":" not in self.policy:
            check_choice("policy", self.policy, policy_paths())
        ratio = self.kv_budget
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 / _MILLION <= ratio <= 1:
            raise invalid("kv_budget", "a share of the context, above 0 and at most 1 (0.05 is 5 %)", ratio)
        check_int("kv_budget_min", self.kv_budget_min, 1)
        if self.kv_budget_max is not None:
            check_int("kv_budget_max", self.kv_budget_max, self.kv_budget_min)
        check_choice("score", self.score, get_args(Score))
        check_choice("rows", self.rows, get_args(Rows))
        check_choice("granularity", self.granularity, get_args(Granularity))
        ahead = self.lookahead
        if isinstance(ahead, bool) or not isinstance(ahead, int | float) or not 0 <= ahead < 1:
            raise invalid("lookahead", "a decay from 0 (off) to below 1", ahead)
        if ahead and self.score != "weight":
            raise ConfigError(f"lookahead decays softmax weights; got score={self.score!r}. Use score 'weight', or 0")
        if not isinstance(self.adaptive, bool):
            raise invalid("adaptive", "true or false", self.adaptive)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> VegasConfig:
        """Build a config from a mapping; an unknown key is refused, with the nearest known one named."""
        reject_unknown(list(options), [f.name for f in dataclasses.fields(cls)], "option")
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values, fit for JSON and for `from_dict`."""
        return dataclasses.asdict(self)

    @property
    def tail(self) -> int:
        """Most entries since the prefix, the last draft's own included: ``gamma`` verified drafts and as many new."""
        return 2 * self.num_speculative_tokens

    def budget(self, prefix_len: Count, factor: float = 1.0) -> Count:
        """KV entries that one draft step reads of a prefix of ``n = prefix_len`` tokens: the one formula of it.

        ``min(n, clamp(ceil(kv_budget * factor * n), kv_budget_min, kv_budget_max))``

        Parameters
        ----------
        prefix_len : int, numpy.ndarray or torch.Tensor
            Of integers, any shape.
        factor : float
            Share of ``kv_budget`` that is used now, in (0, 1].

        Returns
        -------
        int, numpy.ndarray or torch.Tensor
            As given; 64 bits wide for an array or a tensor.

        """
        millionths = max(round(self.kv_budget * factor * _MILLION), 1)
        n: Any = prefix_len
        if isinstance(n, int):
            wanted = max(-(-n * millionths // _MILLION), self.kv_budget_min)
            return min(n, wanted if self.kv_budget_max is None else min(wanted, self.kv_budget_max))  # type: ignore[return-value]
        n = n.long() if hasattr(n, "long") else n.astype("int64")  # 32 bits hold no millionths
        wanted = (-(-n * millionths // _MILLION)).clip(self.kv_budget_min, self.kv_budget_max)
        return wanted.clip(None, n)  # type: ignore[no-any-return]
