"""How fast decoding is: sides x contexts x batches x temperatures on one model, in the embedded engine or in vLLM."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vegas_bench.measure.embedded_engine import DecodeRun, decode_run
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.throughput_rows import Shape, embedded_row, vllm_row, with_overhead
from vegas_bench.measure.variants import Variant
from vegas_bench.measure.vllm_side import Case, measure_side, speculative_config
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
    """Time every side at every shape in the embedded engine; sides take turns, so that all see the same machine.

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
            taken = [journal.row(f"{shape.key} | {variant.key} | {repeat}", DecodeRun) for repeat in range(repeats)]
            rows.append(embedded_row(shape, variant, taken, size))
    # In the kernels scores come from inside the attention, which the engine's clock does not see.
    return rows if attention == "torch" else [with_overhead(row, rows) for row in rows]


def measure_vllm(
    variants: Sequence[Variant],
    shapes: Sequence[Shape],
    prompts_of: PromptsOf,
    max_tokens: int,
    repeats: int,
    engine: Mapping[str, Any],
    log: Path,
    journal: Journal,
    watch: Watch = unwatched,
) -> list[ThroughputRow]:
    """Time every side at every shape in vLLM, one side after the other, each engine in a process of its own.

    Parameters
    ----------
    engine : mapping
        Arguments of `vllm.LLM` for all sides.
    log : Path
        Takes what vLLM logs; kept if it fails.

    Other parameters are those of `measure_embedded`; a shape of a side is one part of the work.

    Raises
    ------
    ConfigError
        If the plugin does not support a side, before anything is measured.
    ResultError
        If a process fails.

    """
    sides = [(variant, speculative_config(variant.config)) for variant in variants]
    total, done = len(sides) * len(shapes), 0
    for variant, speculative in sides:
        keys = {f"{shape.key} | {variant.key}": shape for shape in shapes}
        missing = {key: shape for key, shape in keys.items() if key not in journal}
        done += len(keys) - len(missing)
        if not missing:
            continue
        watch(f"{variant.key}: starting vLLM", done, total)
        cases = [Case(key, prompts_of(at.context, at.batch), at.temperature) for key, at in missing.items()]
        arguments = {**engine, "speculative_config": speculative}
        size: ModelSize | None = None
        for found in measure_side(arguments, cases, max_tokens, repeats, log):
            if isinstance(found, ModelSize):
                size = found
            else:
                key, measured = found
                journal.append(
                    key, {**dataclasses.asdict(measured), "size": dataclasses.asdict(size or ModelSize(0, 0))}
                )
                done += 1
            watch(f"{variant.key}: measured" if done == total else variant.key, done, total)
    rows = []
    for shape in shapes:
        for variant in variants:
            figures = dict(journal[f"{shape.key} | {variant.key}"])
            rows.append(vllm_row(shape, variant, ModelSize(**figures.pop("size")), figures))
    return [with_overhead(row, rows) for row in rows]


def _see(watch: Watch, label: str, done: int, total: int, share: float) -> None:
    watch(label, done + share, total)
