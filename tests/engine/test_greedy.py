"""Greedy float32 output is the model's own, token for token, whatever drafted it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from engine_cases import (
    POLICIES,
    SMALL_BUDGET,
    VEGAS,
    as_prompts,
    describe,
    engine_model,
    fresh_model,
    generated,
    greedy,
    make_llm,
    reference,
)
from tiny_models import FAMILIES, VOCAB, random_prompt
from torch import Tensor

from vegas_spec import LLM
from vegas_spec.engine.kv_cache import DraftCache
from vegas_spec.engine.sampler import Sampler
from vegas_spec.policies import Verified
from vegas_spec.policies.vegas import VegasPolicy

RAGGED = [random_prompt(length, seed=length) for length in (1, 2, 30, 61, 17)]


def expect(family: str, llm: LLM, prompts: Sequence[list[int]], max_tokens: int) -> None:
    outputs = llm.generate(as_prompts(prompts), greedy(max_tokens))
    assert generated(outputs) == [reference(family, prompt, max_tokens) for prompt in prompts]


@pytest.mark.parametrize("options", POLICIES, ids=describe)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_policy_says_what_transformers_says(family: str, options: dict[str, Any]) -> None:
    expect(family, make_llm(family, max_num_seqs=3, **options), RAGGED, 12)


@pytest.mark.parametrize("options", VEGAS, ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss"])
def test_every_way_to_score_says_what_transformers_says(family: str, options: dict[str, Any]) -> None:
    expect(family, make_llm(family, max_num_seqs=3, **options), RAGGED, 9)


@pytest.mark.parametrize("family", FAMILIES)
def test_long_outputs_that_cross_the_sliding_window(family: str) -> None:
    llm = make_llm(family, kv_budget_min=24)  # enough for many accepted drafts
    prompts = [random_prompt(9, seed=1), random_prompt(40, seed=2)]
    outputs = llm.generate(as_prompts(prompts), greedy(44))
    assert generated(outputs) == [reference(family, prompt, 44) for prompt in prompts]
    assert all(output.stats.accepted > 0 for output in outputs)
    if family != "mistral_sliding":  # without a layer of full attention a draft misses nothing
        assert any(output.stats.accepted < output.stats.drafted for output in outputs)


@pytest.mark.parametrize("options", POLICIES, ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_the_end_of_sequence_token(family: str, options: dict[str, Any]) -> None:
    prompt = random_prompt(30, seed=3)
    whole = reference(family, prompt, 40)
    end = next(token for place, token in enumerate(whole) if place >= 9 and token not in whole[:place])
    model = fresh_model(family)
    model.generation_config.eos_token_id = [VOCAB - 1, end] if VOCAB - 1 not in whole else end
    llm = LLM(model, **SMALL_BUDGET, **options)

    stops, goes_on = llm.generate(as_prompts([prompt] * 2), [greedy(40, ignore_eos=False), greedy(40)])

    assert stops.outputs[0].token_ids == reference(family, prompt, 40, eos_token_id=end)
    assert stops.outputs[0].token_ids == whole[: whole.index(end) + 1]
    assert (stops.outputs[0].finish_reason, stops.outputs[0].stop_reason) == ("stop", None)
    assert goes_on.outputs[0].token_ids == whole
    assert goes_on.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("options", POLICIES, ids=describe)
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_the_context_limit_ends_an_output(family: str, options: dict[str, Any]) -> None:
    prompts = [random_prompt(length, seed=length) for length in (255, 254, 249, 238)]
    outputs = make_llm(family, **options).generate(as_prompts(prompts), greedy(None))
    assert generated(outputs) == [reference(family, prompt, 256 - len(prompt)) for prompt in prompts]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_a_shorter_context_than_the_models() -> None:
    prompts = [random_prompt(length) for length in (39, 30)]
    outputs = make_llm("qwen2", max_model_len=40).generate(as_prompts(prompts), greedy(None))
    assert generated(outputs) == [reference("qwen2", prompt, 40 - len(prompt)) for prompt in prompts]


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("gamma", [1, 2, 16])
def test_draft_lengths(family: str, gamma: int) -> None:
    expect(family, make_llm(family, num_speculative_tokens=gamma), RAGGED, 16)


@pytest.mark.parametrize(
    "budget",
    [
        {"kv_budget": 1e-6, "kv_budget_min": 1},
        {"kv_budget": 0.5, "kv_budget_min": 1, "kv_budget_max": 3},
        {"kv_budget": 1.0, "kv_budget_min": 1},
        {"kv_budget": 0.05, "kv_budget_min": 1_000_000},
    ],
    ids=["one entry", "fewer than drafts", "everything", "more than the context"],
)
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_budgets(family: str, budget: dict[str, Any]) -> None:
    expect(family, make_llm(family, **budget), RAGGED, 12)


@pytest.mark.parametrize("family", ["qwen3", "mistral_sliding", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_a_prompt_in_pieces(family: str, chunk: int) -> None:
    expect(family, make_llm(family, prefill_chunk_size=chunk), RAGGED, 8)


# --- engines beside each other --------------------------------------------------------------------------------------


def test_engines_in_turns_do_not_disturb_each_other() -> None:
    shared = make_llm("gemma3_text")
    llms = [("qwen3", make_llm("qwen3")), ("gemma3_text", shared), ("gemma3_text", shared.with_config(policy="dense"))]
    prompts = [random_prompt(30 + place, seed=place) for place in range(len(llms))]
    streams = [llm.stream(as_prompts([prompt]), greedy(24)) for (_, llm), prompt in zip(llms, prompts, strict=True)]
    outputs: dict[int, Any] = {}
    while streams_left := [place for place, stream in enumerate(streams) if stream is not None]:
        for place in streams_left:
            update = next(streams[place], None)
            if update is None:
                streams[place] = None  # type: ignore[call-overload]
            else:
                outputs[place] = update.output.outputs[0].token_ids
    expected = [reference(family, prompt, 24) for (family, _), prompt in zip(llms, prompts, strict=True)]
    assert [outputs[place] for place in range(len(llms))] == expected


def test_engines_in_two_threads_do_not_disturb_each_other() -> None:
    one = make_llm("qwen2")
    cases = [("qwen2", one), ("qwen2", one), ("gpt_oss", make_llm("gpt_oss"))]
    results: dict[int, list[list[int]]] = {}

    def work(place: int, llm: LLM) -> None:
        results[place] = generated(llm.generate(as_prompts(RAGGED[place:]), greedy(20)))

    threads = [threading.Thread(target=work, args=(place, llm)) for place, (_, llm) in enumerate(cases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, (family, _) in enumerate(cases):
        assert results[place] == [reference(family, prompt, 20) for prompt in RAGGED[place:]]


def test_with_config_shares_the_model() -> None:
    llm = make_llm("llama")
    other = llm.with_config(policy="dense", num_speculative_tokens=2)
    assert other.model is llm.model
    assert (other.config.policy, other.config.num_speculative_tokens) == ("dense", 2)
    assert (llm.config.policy, llm.config.num_speculative_tokens) == ("vegas", 6)
    assert other.config.kv_budget == llm.config.kv_budget
    expect("llama", other, RAGGED, 8)
    expect("llama", llm, RAGGED, 8)


# --- bad drafts -----------------------------------------------------------------------------------------------------


def random_tokens(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, None]:
    return random.Random(len(drafts)).randrange(VOCAB), None


def one_token(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, None]:
    return VOCAB - 1, None


def end_of_sequence(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, None]:
    return 2, None


def right_then_wrong(sampler: Sampler, logits: Tensor, drafts: Sequence[int]) -> tuple[int, None]:
    best = int(sampler.penalised(logits[None], drafts, len(drafts)).argmax())
    return (best if len(drafts) < 2 else (best + 1) % VOCAB), None


@pytest.mark.parametrize("choose", [random_tokens, one_token, end_of_sequence, right_then_wrong])
@pytest.mark.parametrize("options", [{"policy": "dense"}, {"policy": "vegas", "rows": "last"}], ids=describe)
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_bad_drafts_cost_time_only(
    monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any], choose: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Sampler, "choose", choose)
    outputs = make_llm(family, **options).generate(as_prompts(RAGGED), greedy(10, ignore_eos=False))
    assert generated(outputs) == [reference(family, prompt, 10, eos_token_id=2) for prompt in RAGGED]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_a_bad_selection_costs_time_only(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    def oldest(policy: VegasPolicy, verified: Verified) -> Tensor:
        layers, batch, groups, _ = verified.scores.shape  # type: ignore[union-attr]
        return torch.zeros(layers, batch, groups, 1, dtype=torch.int64)

    monkeypatch.setattr(VegasPolicy, "select", oldest)
    expect(family, make_llm(family), RAGGED, 20)


def test_a_draft_whose_logits_are_not_numbers_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read = DraftCache.read

    def poisoned(self: DraftCache, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = read(self, layer)
        return keys, torch.full_like(values, torch.nan)

    monkeypatch.setattr(DraftCache, "read", poisoned)
    expect("qwen3", make_llm("qwen3"), RAGGED, 12)


PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}


@pytest.mark.parametrize("choose", [None, random_tokens, right_then_wrong])
def test_penalties_see_drafts_as_they_would_see_output(
    monkeypatch: pytest.MonkeyPatch, choose: Callable[..., Any] | None
) -> None:
    llm = make_llm("qwen3", policy="full")
    plain = generated(llm.generate(as_prompts(RAGGED), greedy(20, **PENALTIES)))
    assert plain != generated(llm.generate(as_prompts(RAGGED), greedy(20)))
    if choose is not None:
        monkeypatch.setattr(Sampler, "choose", choose)
    for policy in ("vegas", "dense"):
        drafted = llm.with_config(policy=policy).generate(as_prompts(RAGGED), greedy(20, **PENALTIES))
        assert generated(drafted) == plain


def test_the_repetition_penalty_is_transformers() -> None:
    outputs = make_llm("llama").generate(as_prompts(RAGGED), greedy(20, repetition_penalty=1.5))
    assert generated(outputs) == [reference("llama", prompt, 20, repetition_penalty=1.5) for prompt in RAGGED]


def test_the_model_is_left_as_it_came_but_for_its_attention() -> None:
    model = engine_model("qwen2")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    expect("qwen2", make_llm("qwen2"), RAGGED, 8)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
