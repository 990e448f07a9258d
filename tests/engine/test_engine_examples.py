"""The examples in docstrings run, and give what they say."""

from __future__ import annotations

import doctest

import pytest
import torch
import transformers
from scripted import TOKENIZER

from vegas_spec import LLM, SamplingParams


@pytest.mark.parametrize("documented", [LLM, SamplingParams])
def test_examples(documented: type) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    names = {"LLM": LLM, "model": model, "tokenizer": TOKENIZER}
    [found] = doctest.DocTestFinder(recurse=False).find(documented, globs=names)
    assert len(found.examples) >= 5
    said: list[str] = []
    result = doctest.DocTestRunner().run(found, out=said.append)
    assert result.attempted == len(found.examples)
    assert result.failed == 0, "".join(said)
