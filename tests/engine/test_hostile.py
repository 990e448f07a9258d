"""What cannot be run is refused in one sentence, and nothing else breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_cases import (
    SMALL_BUDGET,
    as_prompts,
    assert_works,
    fresh_model,
    generated,
    greedy,
    make_llm,
    one_sentence,
    reference,
    refused,
)
from scripted import TOKENIZER
from tiny_models import VOCAB, random_prompt

from vegas_spec import LLM, ConfigError, InputError, ModelError, SamplingParams

PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 23)]


# --- prompts and options --------------------------------------------------------------------------------------------

BAD_PROMPTS: list[tuple[Any, str]] = [
    ({"prompt_token_ids": []}, "is empty"),
    ({"prompt_token_ids": [5] * 256}, "has 256 tokens, but the context is 256 tokens"),
    ({"prompt_token_ids": [5] * 9999}, "shorten the prompt"),
    ({"prompt_token_ids": [3, VOCAB, 4]}, f"holds token {VOCAB}; token ids go from 0 to {VOCAB - 1}"),
    ({"prompt_token_ids": [3, -1]}, "holds token -1"),
    ({"prompt_token_ids": [3.5]}, "whole numbers"),
    ({"prompt_token_ids": ["a"]}, "whole numbers"),
    ({"prompt_token_ids": None}, "whole numbers"),
    ({"prompt": "text"}, "a prompt is text or"),
    (7, "a prompt is text or"),
    ([5, 6], "a prompt is text or"),
    (None, "a prompt is text or"),
]


@pytest.mark.parametrize(("prompt", "says"), BAD_PROMPTS)
def test_a_prompt_that_cannot_be_run(prompt: Any, says: str) -> None:
    llm = make_llm("qwen3")
    with pytest.raises(InputError, match=says) as caught:
        llm.generate([*as_prompts(PROMPTS), prompt], greedy(5))
    one_sentence(caught.value)
    with pytest.raises(InputError):
        llm.stream([prompt], greedy(5))  # at once, not when the first update is asked for
    assert_works(llm)


def test_text_for_a_model_without_a_tokenizer() -> None:
    llm = make_llm("qwen3")
    with pytest.raises(ValueError, match="token ids, since this model came without a tokenizer"):
        llm.generate("text", greedy(5))
    with pytest.raises(ValueError, match="stop must be empty, since this model came without a tokenizer"):
        llm.generate(as_prompts(PROMPTS), greedy(5, stop="x"))
    assert_works(llm)


def test_empty_text() -> None:
    model = fresh_model("qwen3")
    with pytest.raises(InputError, match="prompt 1 is empty; it needs at least one token"):
        LLM(model, TOKENIZER).generate(["a", ""], greedy(5))


def test_one_token_prompts_and_one_token_answers() -> None:
    outputs = make_llm("qwen3").generate(as_prompts(PROMPTS), greedy(1))
    assert generated(outputs) == [reference("qwen3", prompt, 1) for prompt in PROMPTS]
    assert all(output.stats.iterations == output.stats.drafted == 0 for output in outputs)
    two = make_llm("qwen3").generate(as_prompts(PROMPTS), greedy(2))
    assert generated(two) == [reference("qwen3", prompt, 2) for prompt in PROMPTS]
    full = make_llm("qwen3", max_model_len=2).generate(as_prompts([[5]]), greedy(None))
    assert generated(full) == [reference("qwen3", [5], 1)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_budgt": 0.1}, "unknown option 'kv_budgt'; did you mean 'kv_budget'"),
        ({"max_model_length": 99}, "did you mean 'max_model_len'"),
        ({"kv_budget": 0}, "kv_budget must be a share of the context, above 0 and at most 1.*got 0"),
        ({"kv_budget": 2}, "kv_budget must be .*got 2"),
        ({"kv_budget": float("nan")}, "kv_budget must be .*got nan"),
        ({"policy": "vega"}, "did you mean 'vegas'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be an integer from 1 to 16; got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer of at least 1; got 0"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size must be an integer of at least 1; got 0"),
        ({"max_model_len": 257}, "max_model_len must be an integer from 2 to 256; got 257"),
        ({"max_model_len": 1}, "max_model_len must be an integer from 2 to 256; got 1"),
        ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
        ({"dtype": "float16"}, "dtype must be left out: a loaded model keeps its own; got 'float16'"),
        ({"device": "cpu"}, "device must be left out"),
    ],
)
def test_options_that_are_not_allowed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        make_llm("qwen3", **options)
    one_sentence(caught.value)
    llm = make_llm("qwen3")
    if "kv_budget" in options or "policy" in options:
        with pytest.raises(ConfigError, match=says):
            llm.with_config(**options)
    assert_works(llm)


# --- architectures --------------------------------------------------------------------------------------------------

TINY = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "MLA": ("DeepseekV3Config", TINY, "deepseek_v3.*latent attention"),
    "MLA of V2": ("DeepseekV2Config", TINY, "deepseek_v2.*latent attention"),
    "an indexer": ("DeepseekV32Config", TINY, "deepseek_v32.*latent attention"),
    "sparse blocks": ("MiniMaxM3VLTextConfig", {}, "minimax_m3_vl_text.*indexer"),
    "Mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2}, "mamba.*linear_attention"),
    "Jamba": ("JambaConfig", {}, "jamba.*linear_attention"),
    "linear attention": ("Qwen3NextConfig", {}, "qwen3_next.*linear_attention"),
    "encoder and decoder": ("T5Config", {}, "t5.*encoder-decoder"),
    "BART": ("BartConfig", {}, "bart.*encoder-decoder"),
    "images": ("Qwen2_5_VLConfig", {}, "qwen2_5_vl.*images or sound"),
    "Gemma 3 with images": ("Gemma3Config", {}, "gemma3.*text-only variant"),
    "shared keys": ("Gemma3nTextConfig", {}, "gemma3n_text.*share keys and values"),
    "chunks": ("Llama4TextConfig", {}, "llama4_text.*chunked_attention"),
    "dynamic rope": (
        "LlamaConfig",
        {**TINY, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "llama.*rotary embedding changes with the length",
    ),
    "long rope": (
        "Phi3Config",
        {
            **TINY,
            "pad_token_id": 0,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
        },
        "phi3.*rotary embedding changes with the length",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_architecture_refused_by_its_config(tmp_path: Path, case: str) -> None:
    """Before any weight is looked for: the folder has none."""
    name, options, says = REFUSED[case]
    getattr(transformers, name)(**options).save_pretrained(tmp_path)
    message = refused(str(tmp_path), f"^{tmp_path} is of type '{says}")
    assert "which is not supported: " in message


LOOKED_AT: dict[str, tuple[str, dict[str, Any], str]] = {
    "both directions": ("BertConfig", {}, "bert.*its attention is not causal"),
    "a mask of its own": ("DogeConfig", {}, "doge.*a mask of their own"),
    "position biases": ("BloomConfig", {"n_head": 2}, "bloom.*do not run through transformers' attention interface"),
    "two attentions a layer": ("DiffLlamaConfig", {}, "diffllama.*4 of its 2 layers"),
    "no arguments through": ("StableLmConfig", {}, "stablelm.*do not run through transformers' attention interface"),
}


@pytest.mark.parametrize("case", LOOKED_AT)
def test_an_architecture_refused_by_how_it_runs(case: str) -> None:
    name, options, says = LOOKED_AT[case]
    config = getattr(transformers, name)(**{**TINY, "pad_token_id": 0, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    refused(model, f"^{type(model).__name__} is of type '{says}")
    assert model.config._attn_implementation == "eager"  # as before; there is no public way to ask


def test_after_refusals_engines_work(tmp_path: Path) -> None:
    llm = make_llm("qwen3")
    transformers.MambaConfig(hidden_size=32, num_hidden_layers=2).save_pretrained(tmp_path)
    refused(str(tmp_path), "not supported")
    assert_works(llm)
    assert_works(make_llm("qwen3"))


def test_the_models_own_forward_says_why_it_does_not_run() -> None:
    model = fresh_model("qwen3")
    llm = LLM(model)
    with pytest.raises(RuntimeError, match="works only inside vegas_spec"):
        model(torch.tensor([[1, 2]]))
    model.set_attn_implementation("eager")
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, VOCAB)
    with pytest.raises(ModelError, match="was set to attention 'eager'; an engine needs a model of its own"):
        llm.generate(as_prompts(PROMPTS), greedy(2))
    model.set_attn_implementation("vegas")
    assert_works(llm)


# --- a model that breaks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("policy", ["vegas", "full"])
def test_broken_logits_end_one_request(
    monkeypatch: pytest.MonkeyPatch, value: float, temperature: float, policy: str
) -> None:
    """From position 33 on the model's logits are broken; of three prompts only one gets there."""
    llm = make_llm("qwen3", kv_budget_min=16, policy=policy)
    params = SamplingParams(temperature=temperature, max_tokens=9, ignore_eos=True, seed=1)
    lengths = (1, 28, 12)
    prompts = as_prompts([random_prompt(length, seed=length) for length in lengths])
    whole = generated(llm.generate(prompts, params))
    forward = llm.model.forward

    def broken(token_ids: Any, positions: Any, step: Any, rows: Any) -> torch.Tensor:
        logits = forward(token_ids, positions, step, rows)
        for place, row in enumerate(rows):
            if positions[row] >= 32:
                logits[place] = value
        return logits

    monkeypatch.setattr(llm.model, "forward", broken)
    outputs = llm.generate(prompts, params)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length"]
    assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == [whole[0], whole[2]]
    partial = outputs[1].outputs[0].token_ids
    assert partial == whole[1][: len(partial)]
    assert 1 <= len(partial) <= 5
    assert outputs[1].error is not None
    assert "logits" in outputs[1].error
    assert "are not numbers" in outputs[1].error
    assert outputs[0].error is outputs[2].error is None

    monkeypatch.undo()
    assert generated(llm.generate(prompts, params)) == whole


def test_weights_that_are_not_numbers() -> None:
    model = fresh_model("gemma3_text")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[:] = torch.nan
    outputs = LLM(model, **SMALL_BUDGET).generate(as_prompts(PROMPTS), greedy(5))
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
    assert [output.outputs[0].token_ids for output in outputs] == [[]] * 3
    assert all(output.finished and output.error for output in outputs)
