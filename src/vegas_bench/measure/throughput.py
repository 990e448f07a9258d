"""Decoding speed in the embedded engine: sides x contexts x batches x temperatures on one loaded model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from vegas_bench.measure.decoding import Decoding, together
from vegas_bench.measure.embedded_engine import decode_run
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.throughput_rows import Shape, row_of, with_overhead
from vegas_bench.measure.variants import Variant
from vegas_bench.results.journal import Journal
from vegas_bench.results.results import ThroughputRow
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.sampling_params import SamplingParams

PromptsOf = Callable[[int, int], Sequence[Sequence[int]]]
"""Token ids of prompts: so many tokens each, and how many."""


def measure_embedded(
    llm: LLM,
    variants: Sequence[Variant],
    shapes: Sequence[Shape],
    prompts_of: PromptsOf,
    max_tokens: int,
    repeats: int,
    journal: Journal,
    watch: Watch = unwatched,
    attention: str = "torch",
) -> list[ThroughputRow]:
    """Time every side at every shape; sides take turns, so that all see the same machine.

    Parameters
    ----------
    llm : LLM
        The model; its ``max_num_seqs`` is at least the largest batch.
    variants, shapes : sequence
        What to compare, at what.
    prompts_of : callable
        See `PromptsOf`.
    max_tokens, repeats : int
        Of each output; timed runs of each side.
    journal : Journal
        Takes every run; what it has is not measured again.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are runs.
    attention : str
        The engine's.

    """
    engines = [(variant, llm.with_config(**variant.config.to_dict())) for variant in variants]
    total, done = len(engines) * len(shapes) * repeats, 0
    for shape in shapes:
        runs = [
            (f"{shape.key} | {variant.key} | {repeat}", variant, engine)
            for repeat in range(repeats)
            for variant, engine in engines
        ]
        missing = [run for run in runs if run[0] not in journal]
        done += len(runs) - len(missing)
        if not missing:
            continue
        watch(f"{shape.key}: reading prompts", done, total)
        prompts = llm.prefill([{"prompt_token_ids": list(each)} for each in prompts_of(shape.context, shape.batch)])
        params = SamplingParams(temperature=shape.temperature, max_tokens=max_tokens, seed=0, ignore_eos=True)
        for key, variant, engine in missing:
            see = functools.partial(_see, watch, f"{shape.key}: {variant.key}", done, total)
            journal.append(key, dataclasses.asdict(decode_run(engine, prompts, params, see)))
            done += 1
        del prompts  # before the next ones are read: their keys and values take as much again
    size = ModelSize.of(llm.model)
    rows = []
    for shape in shapes:
        for variant in variants:
            taken = [journal.row(f"{shape.key} | {variant.key} | {repeat}", Decoding) for repeat in range(repeats)]
            rows.append(row_of(shape, variant, "embedded", size, together(taken)))
    # In the kernels scores come from inside the attention, which the engine's clock does not see.
    return rows if attention == "torch" else [with_overhead(row, rows) for row in rows]


def _see(watch: Watch, label: str, done: int, total: int, share: float) -> None:
    watch(label, done + share, total)
