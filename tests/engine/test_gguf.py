"""GGUF files: read, unpacked, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from engine_cases import SMALL_BUDGET, as_prompts, assert_works, generated, greedy, refused
from scripted import TOKENIZER, save_model
from tiny_models import random_prompt

from vegas_spec import LLM, ModelError
from vegas_spec.engine.gguf_file import convert_gguf


def write_gguf(path: Path, factors: Sequence[float] = (), scaling: str | None = None) -> Path:
    """A Qwen2 model of one layer with the vocabulary of `TOKENIZER`, in the names that the format has.

    ``factors`` divide its inverse frequencies; ``scaling`` is what its metadata call its rotary embedding's scaling.
    """
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
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(4.0)
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
    if factors:
        writer.add_tensor("rope_freqs.weight", numpy.array(factors, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


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


@pytest.mark.parametrize("name", ["Q.GGUF", "q.Gguf"])
def test_a_gguf_file_in_capitals(gguf_file: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(gguf_file, tmp_path / name)
    assert LLM(tmp_path / name, dtype="float32").model.vocab_size == len(TOKENIZER)
    refused("/no/such/" + name, f"there is no GGUF file /no/such/{name}")


def test_a_folder_may_be_called_like_a_file(tmp_path: Path) -> None:
    assert_works(LLM(save_model("qwen3", tmp_path / "unpacked.gguf"), **SMALL_BUDGET))


def test_a_gguf_file_that_scales_its_frequencies(gguf_file: Path, tmp_path: Path) -> None:
    """Llama 3.1's way, which transformers leaves out: the model computes with them."""
    factors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    scaled = LLM(write_gguf(tmp_path / "scaled.gguf", factors), dtype="float32")
    plain = LLM(gguf_file, dtype="float32")
    frequencies = [llm.model.module.base_model.rotary_emb.inv_freq for llm in (scaled, plain)]
    assert torch.equal(frequencies[0], frequencies[1] / torch.tensor(factors))
    logits = [llm.next_token_logits(random_prompt(60)) for llm in (scaled, plain)]
    assert float((logits[0] - logits[1]).abs().max()) > 1e-3


def test_a_gguf_file_that_scales_in_a_way_that_is_not_read(tmp_path: Path) -> None:
    says = "scales its rotary embedding .yarn., which is not read from GGUF files; load the model's safetensors instead"
    refused(write_gguf(tmp_path / "yarn.gguf", scaling="yarn"), says)
    refused(write_gguf(tmp_path / "short.gguf", [1.0] * 3), "its rope_freqs.weight does not fit its rotary embedding")
    assert LLM(write_gguf(tmp_path / "none.gguf", scaling="none")).max_model_len == 128


def test_a_gguf_file_is_not_unpacked_without_its_scaling(gguf_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="scales its rotary embedding, which a folder cannot say"):
        convert_gguf(write_gguf(tmp_path / "scaled.gguf", [2.0] * 8), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    convert_gguf(gguf_file, tmp_path / "folder")
    assert LLM(tmp_path / "folder").max_model_len == 128
