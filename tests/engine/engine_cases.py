"""What the engine's tests share: engines over tiny models, and what transformers says to the same prompts."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from tiny_models import tiny_model

from vegas_spec import LLM, RequestOutput, SamplingParams, config
from vegas_spec.engine.prompts import TokensPrompt

VEGAS = [
    {"score": score, "rows": rows, "granularity": granularity}
    for score, rows, granularity in itertools.product(
        ("weight", "logit"), ("ends", "all", "last"), ("kv_head", "layer")
    )
]
POLICIES: list[dict[str, Any]] = [{"policy": name} for name in config.POLICIES]
SMALL_BUDGET = {"kv_budget": 0.1, "kv_budget_min": 4}


def describe(options: dict[str, Any]) -> str:
    """Name a case after its options."""
    return "-".join(str(value) for value in options.values())


def fresh_model(family: str) -> Any:
    """A model with the weights of `tiny_model`, to do with as one likes."""
    return copy.deepcopy(tiny_model(family))


@functools.cache
def engine_model(family: str) -> Any:
    """The model that engines of this process share."""
    return fresh_model(family)


def make_llm(family: str, **options: Any) -> LLM:
    """Build an engine that drafts over very few entries."""
    return LLM(engine_model(family), **{**SMALL_BUDGET, **options})


@functools.cache
def _reference(family: str, prompt: tuple[int, ...], count: int, options: tuple[tuple[str, Any], ...]) -> list[int]:
    tokens = torch.tensor([prompt])
    arguments = {"eos_token_id": None, **dict(options)}
    out = tiny_model(family).generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, **arguments
    )
    return out[0, len(prompt) :].tolist()


def reference(family: str, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """Greedy tokens by ``transformers.generate``; the end-of-sequence token ends nothing unless asked for."""
    return list(_reference(family, tuple(prompt), count, tuple(options.items())))


def greedy(max_tokens: int | None, **options: Any) -> SamplingParams:
    """Greedy sampling past the end-of-sequence token."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **options})


def as_prompts(prompts: Sequence[Sequence[int]]) -> list[TokensPrompt]:
    """Token ids in the API's form."""
    return [{"prompt_token_ids": list(prompt)} for prompt in prompts]


def generated(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The tokens of each request."""
    return [output.outputs[0].token_ids for output in outputs]


def one_sentence(error: BaseException) -> str:
    """The message of an error that is meant for users."""
    message = str(error)
    assert "\n" not in message
    assert 15 < len(message) < 600
    return message
