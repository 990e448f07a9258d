"""All workloads by name, and how the command line names one: ``name:key=value,key=value``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vegas_bench.workloads.needle import multi_key_prompts, needle_prompts
from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_bench.workloads.source import source_prompts, texts_prompts
from vegas_bench.workloads.stored import aime25_prompts, codeelo_prompts, jsonl_prompts, longbench_v2_prompts
from vegas_spec.config import ConfigError, check_choice, invalid, reject_unknown
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.prompts import InputError

_COMMON = ("prompts", "min_tokens", "max_tokens", "seed")


@dataclass(frozen=True)
class Workload:
    """A kind of prompts.

    Attributes
    ----------
    name, summary : str
        How it is asked for; what it is.
    build : callable
        ``build(encoder, wanted, **own_options)``; its keyword-only parameters are the options it has of its own.
    min_tokens, max_tokens : int or None
        Usual lengths; None is as long as the model allows.

    """

    name: str
    summary: str
    build: Callable[..., list[WorkloadPrompt]]
    min_tokens: int = 1
    max_tokens: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of its own and their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("source", "standard-library source and a question", source_prompts, 4096, 8192),
        Workload("texts", "texts one after the other, nothing asked", texts_prompts, 4096, 8192),
        Workload("needle", "one fact hidden in a long text", needle_prompts, 4096, 8192),
        Workload("multi-key", "several facts, some of them asked for", multi_key_prompts, 4096, 8192),
        Workload("aime25", "AIME 2025, long reasoning", aime25_prompts),
        Workload("codeelo", "CodeElo, long reasoning about programs", codeelo_prompts),
        Workload("longbench-v2", "LongBench v2, 96K to 120K tokens", longbench_v2_prompts, 98_304, 122_880),
        Workload("jsonl", "any JSONL file", jsonl_prompts),
    )
}


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload and its parameters, as asked for."""

    workload: Workload
    common: dict[str, int]
    own: dict[str, Any]
    text: str
    """As the command line wrote it."""

    def build(
        self, encoder: Encoder, room: int, note: Callable[[str], None] = lambda text: None, **common: int | None
    ) -> list[WorkloadPrompt]:
        """Make the prompts.

        Parameters
        ----------
        encoder : Encoder
            Of the model.
        room : int
            Most tokens that the model's context leaves for a prompt.
        note : callable, optional
            Told in a sentence what prompts lack of what was asked for: where the context had no room, texts lose their
            middle.
        **common : int or None
            Of `Wanted`, for what the spec leaves open.

        Raises
        ------
        InputError
            If the prompts cannot be had.

        """
        if room < 1:
            raise InputError("the output takes all of the model's context; lower --max-tokens to leave a prompt room")
        usual = {"min_tokens": self.workload.min_tokens, "max_tokens": self.workload.max_tokens}
        given = {name: value for name, value in common.items() if value is not None}
        merged = {**{name: value for name, value in usual.items() if value is not None}, **given, **self.common}
        asked = merged.get("max_tokens", room)
        merged["max_tokens"] = most = min(room, asked)
        if "min_tokens" not in given and "min_tokens" not in self.common:
            merged["min_tokens"] = min(merged["min_tokens"], most)
        prompts = self.workload.build(encoder, Wanted(**merged), **self.own)
        if asked > room:
            note(f"{self.text}: prompts of up to {asked} tokens are wanted, and the model's context leaves {room}")
        if cut := [prompt.cut for prompt in prompts if prompt.cut]:
            note(
                f"{self.text}: {len(cut)} of {len(prompts)} texts are longer than {most} tokens and lost their middle, "
                f"up to {max(cut)} tokens of one"
            )
        return prompts


def parse(text: str) -> WorkloadSpec:
    """Read ``name:key=value,key=value``.

    Raises
    ------
    ConfigError
        For an unknown name or key, or a value of the wrong kind.

    """
    name, _, rest = text.partition(":")
    check_choice("workload", name, list(WORKLOADS))
    workload = WORKLOADS[name]
    defaults = workload.options
    common: dict[str, int] = {}
    own: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"a workload is written name:key=value,key=value; got {pair!r} in {text!r}")
        reject_unknown([key], [*_COMMON, *defaults], f"parameter of workload {name}")
        if key in _COMMON:
            common[key] = _number(key, value, int)
        else:
            own[key] = value if isinstance(defaults[key], str) else _number(key, value, type(defaults[key] or 0.0))
    return WorkloadSpec(workload, common, own, text)


def _number(key: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise invalid(key, "a whole number" if kind is int else "a number", value) from None
