"""Models by name: what is read of folders and files, with which changes, and what cannot be read."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from engine_cases import SMALL_BUDGET, as_prompts, assert_works, generated, greedy, one_sentence, refused
from scripted import TOKENIZER, save_model
from tiny_models import random_prompt, tiny_model

from vegas_spec import LLM, ConfigError, ModelError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as people keep it."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("qwen3").save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


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


# --- configurations with other values -------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def rope_of(model: Any) -> list[tuple[str, Any]]:
    """All that a model's rotary embedding goes by: frequencies, and what it scales attention by."""
    embedding = model.base_model.rotary_emb
    buffers = [(name, buffer.tolist()) for name, buffer in embedding.named_buffers()]
    scales = [(name, value) for name, value in vars(embedding).items() if "scaling" in name and not callable(value)]
    assert buffers
    assert scales
    return sorted(buffers) + sorted(scales)


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("qwen3", YARN),
        ("qwen3", {"type": "yarn", **{name: value for name, value in YARN.items() if name != "rope_type"}}),
        ("qwen3", {**YARN, "beta_fast": 16, "attention_factor": 1.5}),
        ("qwen3", {"rope_type": "linear", "factor": 2.0}),
        ("qwen3", {"rope_theta": 5e5}),
        ("llama", {**LLAMA3, "original_max_position_embeddings": 64}),
        ("llama", LLAMA3),  # the length before scaling is then max_position_embeddings
        ("gemma3_text", {"full_attention": YARN}),
        (
            "gemma3_text",
            {"full_attention": {"type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 3e4}},
        ),
    ],
)
def test_overrides_are_what_the_same_values_are_in_config_json(
    tmp_path: Path, family: str, rope: dict[str, Any]
) -> None:
    plain = save_model(family, tmp_path / "plain")
    written = transformers.AutoConfig.from_pretrained(plain).rope_parameters
    # What config.json would have: the values given, in place of their old names, and the others as they were.
    whole = {
        key: {**was, **{k: v for k, v in rope.get(key, {}).items() if k != "type"}} if isinstance(was, dict) else was
        for key, was in {**written, **rope}.items()
    }
    for part in (whole, *(each for each in whole.values() if isinstance(each, dict))):
        part.pop("type", None)
    if "type" in rope:
        whole["rope_type"] = rope["type"]
    if "type" in rope.get("full_attention", {}):
        whole["full_attention"]["rope_type"] = rope["full_attention"]["type"]
    longer = {"rope_parameters": whole, "max_position_embeddings": 512}
    expected = transformers.AutoModelForCausalLM.from_pretrained(save_model(family, tmp_path / "written", **longer))
    before = transformers.AutoModelForCausalLM.from_pretrained(plain)

    llm = LLM(plain, hf_overrides={"rope_parameters": rope, "max_position_embeddings": 512}, **SMALL_BUDGET)

    assert rope_of(llm.model.module) == rope_of(expected) != rope_of(before)
    assert llm.max_model_len == 512
    prompt = random_prompt(300)
    ids = torch.tensor([prompt])
    [said] = expected.generate(ids, max_new_tokens=9, do_sample=False, attention_mask=torch.ones_like(ids)).tolist()
    assert generated(llm.generate(as_prompts([prompt]), greedy(9, ignore_eos=False))) == [said[300:]]


def test_another_kind_of_rotary_embedding_drops_what_it_does_not_read(tmp_path: Path) -> None:
    rope = {**LLAMA3, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    folder = save_model("llama", tmp_path, rope_parameters=rope)
    llm = LLM(folder, hf_overrides={"rope_parameters": {"rope_type": "yarn", "factor": 2.0}})
    assert llm.model.module.config.rope_parameters == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }


def test_an_old_configuration_takes_overrides_under_the_new_name(tmp_path: Path) -> None:
    folder = save_model("qwen3", tmp_path)
    file = folder / "config.json"
    values = json.loads(file.read_text())
    values |= {
        "rope_theta": values.pop("rope_parameters")["rope_theta"],
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    file.write_text(json.dumps(values))
    llm = LLM(folder, hf_overrides={"rope_parameters": {"factor": 4.0}})
    frequencies = llm.model.module.base_model.rotary_emb.inv_freq
    torch.testing.assert_close(frequencies, tiny_model("qwen3").base_model.rotary_emb.inv_freq / 4)


def test_values_that_follow_from_others_follow_from_the_new_ones(tmp_path: Path) -> None:
    folder = save_model("qwen3", tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "layer_types"}))
    llm = LLM(folder, hf_overrides={"num_hidden_layers": 2})
    assert len(llm.model.layers) == len(llm.model.module.config.layer_types) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rope_parameter": {}}, "got 'rope_parameter'; did you mean 'rope_parameters'"),
        ({"rope_scaling": YARN}, "got 'rope_scaling'; did you mean rope_parameters?"),
        ({"rope_theta": 1e6}, "got 'rope_theta'; did you mean rope_parameters, as in {\"rope_parameters\": "),
        ({"_name_or_path": "x"}, "must name keys of the model's configuration; got '_name_or_path'"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embedding": 64}},
            "got 'rope_parameters.original_max_position_embedding' for rope_type 'yarn'; "
            "did you mean 'original_max_position_embeddings'?",
        ),
        (
            {"rope_parameters": {**YARN, "low_freq_factor": 1.0}},
            "got 'rope_parameters.low_freq_factor' for rope_type 'yarn'",
        ),
        ({"rope_parameters": {"factor": 4.0}}, "got 'rope_parameters.factor' for rope_type 'default'"),
        (
            {"rope_parameters": {"type": "yarm", "factor": 4.0}},
            "rope_parameters.rope_type must be one of default, linear, yarn, llama3; got 'yarm' (did you mean 'yarn'?)",
        ),
    ],
)
def test_overrides_without_effect_are_refused(folder: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        LLM(str(folder), hf_overrides=overrides)
    one_sentence(caught.value)


def test_one_rope_for_layers_that_have_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'rope_parameters\.rope_type'"):
        LLM(save_model("gemma3_text", tmp_path), hf_overrides={"rope_parameters": YARN})


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore."), torch.OutOfMemoryError),
        (MemoryError(), MemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), MemoryError),
    ],
)
@pytest.mark.parametrize("where", ["weights", "a layer"])
def test_running_out_of_memory_is_said_to_be_that(
    monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception, kind: type[Exception], where: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    if where == "weights":
        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", full)
    else:
        monkeypatch.setattr(transformers.models.qwen3.modeling_qwen3.Qwen3MLP, "forward", full)
    with pytest.raises(kind, match="does not fit into the memory of cpu; load it in a smaller dtype") as caught:
        LLM(folder)
    one_sentence(caught.value)
