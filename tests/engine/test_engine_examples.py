"""The examples in docstrings run, and give what they say."""

from __future__ import annotations

import doctest

import pytest
import torch
import transformers
from scripted import TOKENIZER
from tiny_models import small_qwen3

from vegas_spec import LLM, SamplingParams


@pytest.mark.parametrize("documented", [LLM, SamplingParams])
def test_examples(documented: type) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(small_qwen3(len(TOKENIZER))).float()
    names = {"LLM": LLM, "model": model, "tokenizer": TOKENIZER}
    [found] = doctest.DocTestFinder(recurse=False).find(documented, globs=names)
    assert len(found.examples) >= 5
    said: list[str] = []
    result = doctest.DocTestRunner().run(found, out=said.append)
    assert result.attempted == len(found.examples)
    assert result.failed == 0, "".join(said)
