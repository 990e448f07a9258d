"""Tiny random models of every supported family, drawn wide enough that their choices are not degenerate."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

VOCAB = 97
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MIXED = ["sliding_attention", "full_attention"] * 2

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral_sliding": ("MistralConfig", {"sliding_window": 24}),
    "gemma2": ("Gemma2Config", {"sliding_window": 16, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0}),
    "gemma3_text": ("Gemma3TextConfig", {"sliding_window": 16, "layer_types": _MIXED, "query_pre_attn_scalar": 32}),
    "gpt_oss": (
        "GptOssConfig",
        {"sliding_window": 16, "layer_types": _MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
FAMILIES = list(CONFIGS)


def small_qwen3(vocab_size: int, **options: Any) -> Any:
    """Configuration of a still smaller Qwen3, for a tokenizer of so many tokens."""
    shape = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
    }
    return transformers.Qwen3Config(vocab_size=vocab_size, **{**shape, **options})


@functools.cache
def tiny_model(family: str, attention: str = "eager", seed: int = 0) -> Any:
    """Build a float32 model with weights that depend on family and seed alone."""
    name, options = CONFIGS[family]
    config = getattr(transformers, name)(**{**_SHAPE, **options})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 or parameter.shape[0] == config.num_attention_heads:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that avoid the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()
