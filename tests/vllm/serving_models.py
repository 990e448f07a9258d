"""Tiny models with random weights, one per architecture, saved as Hugging Face saves them, with a byte tokenizer."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 320
EOS = 257

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "bos_token_id": 256,
    "eos_token_id": EOS,
    "pad_token_id": 258,
    "tie_word_embeddings": False,
}

CONFIGS = {
    "qwen2": lambda: Qwen2Config(**{**SHAPE, "hidden_size": 128}, num_hidden_layers=3),
    "qwen3": lambda: Qwen3Config(**SHAPE, num_hidden_layers=3),
    "llama": lambda: LlamaConfig(**SHAPE, num_hidden_layers=3),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE,
        num_hidden_layers=4,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=32,
    ),
    "gpt_oss": lambda: GptOssConfig(
        **SHAPE,
        num_hidden_layers=4,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, then begin, end and padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def save_tiny_model(name: str, folder: Path) -> Path:
    """Write the model if it is not there; wide weights keep greedy decoding from repeating one token."""
    path = folder / name
    if not path.exists():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[name]())
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.15)
                elif "sinks" in parameter_name:
                    parameter.normal_(0, 1)
        model.generation_config.eos_token_id = EOS
        model.save_pretrained(path)
        byte_tokenizer().save_pretrained(path)
    return path
