"""A tiny Qwen3 with random weights, written as Hugging Face writes models: something to run where there is no model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 128, 192, 3, 4, 2, 64, 512
MAX_MODEL_LEN = 2048
"""Small, but with several layers, heads in groups and a head dimension that vLLM takes. Chosen by hand."""


def save_tiny_model(folder: Path, dtype: torch.dtype) -> None:
    """Write config and weights, without a tokenizer.

    Weights are drawn wide enough for attention to look at a few positions, and for the best token to be well ahead of
    the second, so that rounding seldom decides.

    Parameters
    ----------
    folder : Path
        An existing folder.
    dtype : torch.dtype
        Of the weights.

    """
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(dtype), folder / "model.safetensors", metadata={"format": "pt"})


def _weights(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(rows: int, columns: int, scale: float = 0.15) -> Tensor:
        return (scale * torch.randn(rows, columns, generator=generator)).to(dtype)

    weights = {
        "model.embed_tokens.weight": draw(VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
        "lm_head.weight": draw(VOCAB, HIDDEN, 0.5),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for norm, size in (
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
            ("self_attn.q_norm", HEAD_DIM),
            ("self_attn.k_norm", HEAD_DIM),
        ):
            weights[f"{name}{norm}.weight"] = torch.ones(size, dtype=dtype)
        weights |= {
            f"{name}self_attn.q_proj.weight": draw(HEADS * HEAD_DIM, HIDDEN),
            f"{name}self_attn.k_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}self_attn.v_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{name}self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD_DIM),
            f"{name}mlp.gate_proj.weight": draw(INTERMEDIATE, HIDDEN),
            f"{name}mlp.up_proj.weight": draw(INTERMEDIATE, HIDDEN),
            f"{name}mlp.down_proj.weight": draw(HIDDEN, INTERMEDIATE),
        }
    return weights
