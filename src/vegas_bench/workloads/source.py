"""Workloads that need no download: standard-library source with a question, and texts one after the other."""

from __future__ import annotations

import random
from pathlib import Path

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_bench.workloads.records import read_jsonl, text_of
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.prompts import InputError
from vegas_spec.engine.source_text import source_modules, source_prompt


def source_prompts(encoder: Encoder, wanted: Wanted) -> list[WorkloadPrompt]:
    """Standard-library source of the wanted lengths: each prompt from another module on, with the next question."""
    first = wanted.seed * wanted.prompts
    found = [source_prompt(encoder, length, first + number) for number, length in enumerate(wanted.lengths())]
    return [WorkloadPrompt(name, "source", prompt) for name, prompt in found]


def texts_prompts(encoder: Encoder, wanted: Wanted, *, file: str = "", field: str = "text") -> list[WorkloadPrompt]:
    """Texts drawn at random, one after the other, cut at exactly the wanted length; nothing is asked.

    There are as many prompts as wanted, drawn anew for each, and those of another length begin otherwise.

    Parameters
    ----------
    file : str
        A JSONL file of texts, in turn with standard-library source, prompt by prompt; by default source alone.
    field : str
        Which field holds the text.

    """
    kinds = {"source": [path.read_text(encoding="utf-8") for path in source_modules()]}
    if file:
        kinds["text"] = [text_of(record, field, file) for record in read_jsonl(Path(file), [field])]
        if not any(kinds["text"]):
            raise InputError(f"{file} holds no texts")
    prompts = []
    for number, length in enumerate(wanted.lengths()):
        kind = list(kinds)[number % len(kinds)]
        chance = random.Random(f"texts {wanted.seed} {length} {number}")
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += encoder.encode(chance.choice(kinds[kind]))
        prompts.append(WorkloadPrompt(f"{number}: {kind}", kind, {"prompt_token_ids": tokens[:length]}))
    return prompts
