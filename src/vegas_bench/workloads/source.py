"""Workload ``source``: standard-library source, each prompt from another module on, each with the next question."""

from __future__ import annotations

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.source_text import source_prompt


def source_prompts(encoder: Encoder, wanted: Wanted) -> list[WorkloadPrompt]:
    """Standard-library source of the wanted lengths."""
    first = wanted.seed * wanted.prompts
    found = [source_prompt(encoder, length, first + number) for number, length in enumerate(wanted.lengths())]
    return [WorkloadPrompt(name, "source", prompt) for name, prompt in found]
