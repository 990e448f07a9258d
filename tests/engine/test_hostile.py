"""What cannot be run is refused in one sentence, and nothing else breaks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from engine_cases import SMALL_BUDGET, as_prompts, fresh_model, generated, greedy, make_llm, one_sentence, reference
from test_llm import TOKENIZER
from tiny_models import VOCAB, random_prompt, tiny_model

from vegas_spec import LLM, ConfigError, InputError, ModelError, SamplingParams

PROMPTS = [random_prompt(length, seed=length) for length in (1, 40, 23)]


def assert_works(llm: LLM, family: str = "qwen3") -> None:
    outputs = llm.generate(as_prompts(PROMPTS), greedy(5))
    assert generated(outputs) == [reference(family, prompt, 5) for prompt in PROMPTS]


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


# --- models that cannot be read -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as people keep it."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("qwen3").save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def refused(model: Any, says: str, **options: Any) -> str:
    with pytest.raises(ModelError, match=says) as caught:
        LLM(model, **options)
    return one_sentence(caught.value)


@pytest.mark.parametrize("form", [str, Path])
def test_a_good_folder(folder: Path, form: Callable[[Path], Any]) -> None:
    llm = LLM(form(folder), **SMALL_BUDGET)
    assert llm.model.dtype == torch.float32
    assert_works(llm)
    assert LLM(form(folder), dtype="bfloat16").model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/no-such-model-here", "a/b/c", "../x/y"])
def test_a_missing_folder(name: str) -> None:
    refused(name, f"there is no model folder {name}")


def test_a_missing_gguf_file() -> None:
    refused("/no/such/model.gguf", "there is no GGUF file /no/such/model.gguf")


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    refused(str(tmp_path), "holds no model: it has no config.json")
    (tmp_path / "notes.txt").write_text("no model")
    refused(str(tmp_path / "notes.txt"), "is no model; a model is a hub id, a folder")


def test_a_folder_without_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "config.json", tmp_path)
    refused(str(tmp_path), f"cannot load {tmp_path}: ")


def test_weights_that_the_files_lack(folder: Path, tmp_path: Path) -> None:
    """Drawn at random, as transformers does with a warning, they would answer anything."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    refused(tmp_path, "lack 1 of the weights that its configuration asks for, such as model.layers.0.self_attn.q_proj")
    deeper = {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    refused(folder, "of the weights that its configuration asks for, such as model.layers.4", hf_overrides=deeper)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3_text"])
def test_a_folder_without_a_tokenizer(tmp_path: Path, family: str) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    refused(str(tmp_path), f"cannot load {tmp_path}: .*tokenizer")


@pytest.mark.parametrize("keep", [0, 5, 900, 0.5, 0.999])
def test_truncated_safetensors(folder: Path, tmp_path: Path, keep: float) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refused(str(tmp_path), f"cannot load {tmp_path}: ")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "nonsense"}', '{"architectures": ["X"]}'])
def test_a_config_that_is_none(folder: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(text)
    refused(str(tmp_path), f"cannot load {tmp_path}: ")


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    torch.save({"bomb": Bomb()}, tmp_path / "pytorch_model.bin")
    refused(str(tmp_path), "safetensors")
    assert not (tmp_path / "exploded").exists()


def test_code_from_the_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.OwnModel"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})\n")
    refused(str(tmp_path), f"cannot load {tmp_path}: ")
    assert not (tmp_path / "ran").exists()


def test_a_known_model_that_was_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VEGAS_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"vegas models fetch qwen2\.5-coder-0\.5b"):
        LLM("qwen2.5-coder-0.5b")


def test_a_hub_model_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("nobody/no-such-model", "^cannot load nobody/no-such-model: ")
    refused("no-such-model", "^cannot load no-such-model: ")


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", ""])
def test_a_device_that_is_not_there(folder: Path, device: str) -> None:
    with pytest.raises(ValueError, match="device"):
        LLM(str(folder), device=device)


def test_options_of_a_loaded_model_for_one_that_is_not(folder: Path) -> None:
    with pytest.raises(ConfigError, match="dtype must be one of auto, float32, bfloat16, float16; got 'int8'"):
        LLM(str(folder), dtype="int8")
    with pytest.raises(ConfigError, match="tokenizer must be left out"):
        LLM(str(folder), TOKENIZER)


def test_a_configuration_with_other_values(folder: Path) -> None:
    """YaRN over a longer context: the engine does what transformers does with a configuration that says so."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    overrides = {"rope_parameters": rope, "max_position_embeddings": 512}
    llm = LLM(str(folder), hf_overrides=overrides, dtype="float32")
    assert llm.max_model_len == 512
    config = transformers.AutoConfig.from_pretrained(folder)
    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {**rope, "rope_theta": theta}
    config.max_position_embeddings = 512
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    prompt = random_prompt(300)
    [output] = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(temperature=0, max_tokens=12))
    ids = torch.tensor([prompt])
    [expected] = other.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids)).tolist()
    assert list(output.outputs[0].token_ids) == expected[300:]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rope_parameter": {}}, "got 'rope_parameter'; did you mean 'rope_parameters'"),
        ({"_name_or_path": "x"}, "must name keys of the model's configuration; got '_name_or_path'"),
    ],
)
def test_overrides_of_what_is_not_there(folder: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(folder), hf_overrides=overrides)


# --- GGUF -----------------------------------------------------------------------------------------------------------


def write_gguf(path: Path) -> None:
    """A Qwen2 model of one layer with the vocabulary of `TOKENIZER`, in the names that the format has."""
    gguf = pytest.importorskip("gguf")
    import numpy

    hidden, inner, heads, kv_heads, dim = 32, 64, 2, 1, 16
    tokens = [TOKENIZER.convert_ids_to_tokens(token) for token in range(len(TOKENIZER))]
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {
        "token_embd.weight": (len(tokens), hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (len(tokens), hidden),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (heads * dim, hidden),
        "blk.0.attn_q.bias": (heads * dim,),
        "blk.0.attn_k.weight": (kv_heads * dim, hidden),
        "blk.0.attn_k.bias": (kv_heads * dim,),
        "blk.0.attn_v.weight": (kv_heads * dim, hidden),
        "blk.0.attn_v.bias": (kv_heads * dim,),
        "blk.0.attn_output.weight": (hidden, heads * dim),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    random = numpy.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, (random.standard_normal(shape) * 0.2).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def test_a_gguf_file(gguf_file: Path) -> None:
    llm = LLM(gguf_file, dtype="float32", **SMALL_BUDGET)
    prompt = as_prompts([[5, 9, 30, 31, 7, 100, 54]])
    drafted, plain = (llm.with_config(policy=policy).generate(prompt, greedy(20)) for policy in ("vegas", "full"))
    assert generated(drafted) == generated(plain)
    assert LLM(gguf_file).model.dtype == torch.bfloat16


@pytest.mark.parametrize("keep", [0, 3, 60, 0.1, 0.5, 0.999])
def test_a_truncated_gguf_file(gguf_file: Path, tmp_path: Path, keep: float) -> None:
    path = tmp_path / "part.gguf"
    data = gguf_file.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refused(str(path), f"cannot load {path}: ")


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
    assert model.config._attn_implementation == "eager"  # it is as it was before


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
