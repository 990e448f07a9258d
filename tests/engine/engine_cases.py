"""What the engine's tests share: engines over tiny models, and what transformers says to the same prompts."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import random_prompt, tiny_model

from vegas_spec import LLM, ModelError, RequestOutput, SamplingParams, config
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


def refused(model: Any, says: str, **options: Any) -> str:
    """What a model is refused with, in one sentence."""
    with pytest.raises(ModelError, match=says) as caught:
        LLM(model, **options)
    return one_sentence(caught.value)


def assert_works(llm: LLM, family: str = "qwen3") -> None:
    """Whether an engine says what transformers says."""
    prompts = [random_prompt(length, seed=length) for length in (1, 40, 23)]
    outputs = llm.generate(as_prompts(prompts), greedy(5))
    assert generated(outputs) == [reference(family, prompt, 5) for prompt in prompts]
