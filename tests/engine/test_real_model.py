"""The engine on a real model of 0.5B parameters, where `vegas models fetch qwen2.5-coder-0.5b` has brought it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vegas_spec import LLM, SamplingParams
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.equality import compare
from vegas_spec.engine.source_text import source_prompt
from vegas_spec.models import is_fetched, model_folder

NAME = "qwen2.5-coder-0.5b"
NEW_TOKENS = 32

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not is_fetched(NAME), reason=f"needs: vegas models fetch {NAME}"),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield LLM(NAME, dtype="float32", device="cpu")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompt(llm: LLM) -> list[int]:
    return source_prompt(Encoder.of(llm), 2048)[1]["prompt_token_ids"]


@pytest.fixture(scope="module")
def expected(prompt: list[int]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder(NAME), dtype=torch.float32).eval()
    tokens = torch.tensor([prompt])
    # The model's own generation config has a repetition penalty, which plain greedy decoding does not.
    options: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": NEW_TOKENS}
    output = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    return list(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("policy", ["full", "dense", "vegas"])
def test_greedy_output_is_that_of_transformers(llm: LLM, prompt: list[int], expected: list[int], policy: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    [output] = llm.with_config(policy=policy).generate({"prompt_token_ids": prompt}, params)
    assert output.outputs[0].token_ids == expected
    if policy == "vegas":
        assert output.stats.accepted_per_draft > 2
        assert output.stats.draft_kv_share < 0.2


def test_in_bfloat16_the_whole_output_is_judged() -> None:
    """Rows in a batch round differently there: what differs is a tie, and what follows is compared all the same."""
    llm = LLM(NAME, dtype="bfloat16", device="cpu", kv_budget_min=32)
    prompt = source_prompt(Encoder.of(llm), 400)[1]
    report = compare(llm.with_config(policy="full"), llm, [prompt], 48)
    assert report.faults == []
    assert report.agreeing + len(report.ties) == report.compared > 24
    assert report.vegas[0].stats.accepted > 0
