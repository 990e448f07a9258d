"""Prompts of any length for measurements in vLLM: texts one after the other, no two prompts the same ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from vegas_bench.workloads import Encoder
from vegas_bench.workloads.records import read_jsonl
from vegas_spec.engine.source_text import source_modules


def prompt_tokens(context: int, count: int, vocab_size: int, tokenizer: Any, documents: Path | None) -> list[list[int]]:
    """Make that many different prompts of that length.

    They are standard-library source and, in turn with it, `documents` (a JSONL file with the field ``text``); without
    a tokenizer, random tokens. Prompts of another length begin otherwise, so that a prefix cache has not seen them.
    """
    numbers = random.Random(context)
    if tokenizer is None:
        return [[numbers.randrange(vocab_size) for _ in range(context)] for _ in range(count)]
    encoder = Encoder(tokenizer, "the model")
    sources = [[path.read_text(encoding="utf-8") for path in source_modules()]]
    if documents is not None:
        sources.append([record["text"] for record in read_jsonl(documents, ["text"])])
    prompts: list[list[int]] = []
    for number in range(count):
        tokens: list[int] = []
        while len(tokens) < context:
            tokens += encoder.encode(numbers.choice(sources[number % len(sources)]))
        prompts.append(tokens[:context])
    return prompts
