"""Options of a request: what is refused in one sentence, and what becomes of those that vLLM has and we lack."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm, one_sentence
from tiny_models import VOCAB, random_prompt

from vegas_spec import ConfigError, SamplingParams
from vegas_spec.engine.sampling_params import NOT_HERE

PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 23)]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -2},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"min_p": 1.5},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"frequency_penalty": -2.5},
        {"max_tokens": 0},
        {"seed": -1},
        {"stop": ""},
        {"stop": ["a", 3]},
        {"stop_token_ids": [-1]},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": {5: float("inf")}},
        {"logit_bias": [5]},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [-3]},
        {"bad_words": [""]},
        {"bad_words": "text"},
    ],
)
def test_sampling_options_that_are_not_allowed(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        SamplingParams(**options)
    one_sentence(caught.value)


def vllms_sampling_options() -> dict[str, Any]:
    """The options of vLLM's SamplingParams, and their defaults, from its source: its import takes half a minute."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("needs vLLM's source")
    source = Path(found.submodule_search_locations[0], "sampling_params.py").read_text()
    [params] = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "SamplingParams"
    ]
    fields = {
        node.target.id: node.value.value if isinstance(node.value, ast.Constant) else None
        for node in params.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name: value for name, value in fields.items() if name[0] != "_" and name != "output_text_buffer_length"}


def test_every_option_of_vllms_is_taken_or_refused_in_a_sentence() -> None:
    theirs = vllms_sampling_options()
    assert len(theirs) > 30
    ours = {field.name for field in dataclasses.fields(SamplingParams)}
    assert theirs.keys() == ours | NOT_HERE.keys()
    SamplingParams(**theirs)  # each at its default
    for name in theirs.keys() - ours:
        with pytest.raises(ConfigError, match=f"^{name} of vLLM's SamplingParams is not supported") as caught:
            SamplingParams(**{name: [3]})
        one_sentence(caught.value)


def test_sampling_options_that_nobody_has() -> None:
    with pytest.raises(ConfigError, match="unknown sampling option 'max_token'; did you mean 'max_tokens'"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"n of vLLM's SamplingParams is not supported .*: give the prompt n times"):
        SamplingParams(n=2)  # type: ignore[call-arg]
    params = SamplingParams(n=1, logprobs=None, stop=None, stop_token_ids=None, bad_words=None)  # type: ignore[call-arg, arg-type]
    assert params == SamplingParams()
    assert dataclasses.replace(params, top_k=3).top_k == 3
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias must be of token ids from 0 to {VOCAB - 1}"),
        ({"allowed_token_ids": [3, VOCAB]}, f"allowed_token_ids must be of token ids from 0 to {VOCAB - 1}"),
        ({"allowed_token_ids": [2, 5], "stop_token_ids": [5], "min_tokens": 1}, "allowed_token_ids must hold a token"),
        ({"bad_words": ["x"]}, "bad_words must be empty, since this model came without a tokenizer"),
    ],
)
def test_sampling_options_that_a_model_cannot_do(options: dict[str, Any], says: str) -> None:
    llm = make_llm("qwen3")
    with pytest.raises(ConfigError, match=says) as caught:
        llm.generate(as_prompts(PROMPTS), greedy(5, **options))
    one_sentence(caught.value)
    # Stop tokens that the model does not have are never said.
    outputs = llm.generate(as_prompts(PROMPTS), greedy(5, stop_token_ids=[VOCAB + 3], min_tokens=5))
    assert [len(output) for output in generated(outputs)] == [5, 5, 5]
