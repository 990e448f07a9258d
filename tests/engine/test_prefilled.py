"""Prompts read once: what is generated from them is what is generated from the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm, reference
from tiny_models import random_prompt
from torch import Tensor

from vegas_bench.inspect.recorder import SelectionTrace
from vegas_spec import SamplingParams
from vegas_spec.config import POLICIES
from vegas_spec.engine.outputs import Update
from vegas_spec.engine.prompts import InputError

PROMPTS = [random_prompt(length, seed=length) for length in (1, 2, 70, 41)]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "mistral_sliding"])
def test_every_policy_goes_on_from_the_same_prompts(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    llm = make_llm(family, max_num_seqs=3, prefill_chunk_size=32)
    seen: list[Update] = []
    prefilled = llm.prefill(as_prompts(PROMPTS), seen.append)
    assert max(update.prefilled for update in seen) == 69
    kept = [[entries.clone() for entries in each.entries.keys] for each in prefilled]
    expected = {name: llm.with_config(policy=name).generate(as_prompts(PROMPTS), greedy(12)) for name in POLICIES}

    forward, most = llm.model.forward, 3 * (1 + llm.config.num_speculative_tokens)

    def only_drafts(tokens: Sequence[int], *others: Any) -> Tensor:
        assert len(tokens) <= most
        return forward(tokens, *others)

    monkeypatch.setattr(llm.model, "forward", only_drafts)
    for name in POLICIES:
        outputs = llm.with_config(policy=name).generate(prefilled, greedy(12))
        assert generated(outputs) == [reference(family, prompt, 12) for prompt in PROMPTS]
        for output, other in zip(outputs, expected[name], strict=True):
            assert output.stats.accepted_per_position == other.stats.accepted_per_position
            assert output.stats.draft_kv_entries == other.stats.draft_kv_entries
    with pytest.raises(AssertionError):  # which a prompt that is read does not pass
        llm.generate(as_prompts(PROMPTS), greedy(1))
    for each, before in zip(prefilled, kept, strict=True):
        length = len(each.token_ids) - 1
        for layer, keys in enumerate(each.entries.keys):
            assert keys[:, :, :length].equal(before[layer][:, :, :length])


def test_prefilled_prompts_mix_with_others_and_with_the_kernels() -> None:
    llm = make_llm("llama", attention="kernels")
    [one, other] = llm.prefill(as_prompts(PROMPTS[2:]))
    assert generated(llm.generate(one, greedy(9))) == [reference("llama", PROMPTS[2], 9)]
    outputs = llm.generate([*as_prompts(PROMPTS[:2]), other], greedy(9))
    assert generated(outputs) == [reference("llama", prompt, 9) for prompt in (*PROMPTS[:2], PROMPTS[3])]


def test_reading_ahead_does_not_change_what_is_drawn() -> None:
    params = SamplingParams(max_tokens=12)
    prompts = as_prompts(PROMPTS)
    plain = make_llm("qwen3", seed=3).generate(prompts, params)
    llm = make_llm("qwen3", seed=3)
    assert generated(llm.generate(llm.prefill(prompts), params)) == generated(plain)


def test_a_trace_of_a_prefilled_prompt() -> None:
    llm = make_llm("qwen3")
    traces = [SelectionTrace(), SelectionTrace()]
    for trace, prompts in zip(traces, (as_prompts(PROMPTS[2:3]), llm.prefill(as_prompts(PROMPTS[2:3]))), strict=True):
        llm.generate(prompts, greedy(12), trace=trace)
    assert traces[0].summary() == traces[1].summary()


def test_a_prompt_that_another_model_read_is_refused() -> None:
    prefilled = make_llm("llama").prefill(as_prompts(PROMPTS[:1]))
    with pytest.raises(InputError, match="prompt 0 was read by another model"):
        make_llm("llama").generate(prefilled, greedy(3))


def test_bad_prompts_are_refused_before_any_is_read() -> None:
    with pytest.raises(InputError, match="prompt 1 is empty"):
        make_llm("llama").prefill(as_prompts([PROMPTS[2], []]))
