"""Decoding speed in vLLM: sides x contexts x batches x temperatures, each side an engine in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_bench.measure.decoding import Decoding
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.throughput import PromptsOf
from vegas_bench.measure.throughput_rows import Shape, bare_row, row_of, with_overhead
from vegas_bench.measure.vllm_side import Lookup, Side, side_process, speculative_config
from vegas_bench.results.journal import Journal
from vegas_bench.results.results import ResultError, ThroughputRow

FIRST_TOKENS = 5
"""Prompts whose first token is waited for at each length; the first of them warms up."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What every side measures, under the same limits.

    Attributes
    ----------
    engine : mapping
        Arguments of `vllm.LLM` for all sides.
    shapes : sequence of Shape
        Batches whose decoding is timed.
    prompts_of : callable
        Gives their prompts.
    max_tokens, repeats : int
        Of each output; timed runs of each batch.
    rates : sequence of float
        Acceptance to impose on policies; see `speculative_config`.
    first_token : sequence of int
        Lengths of prompts whose first token is waited for, one prompt at a time, before anything else.
    profile : bool
        Tell time by kernel and by the host's functions, too, of each batch.
    together : bool
        Start all engines at once; they measure one after the other. The engines' arguments must give each its memory.

    """

    engine: Mapping[str, Any]
    shapes: Sequence[Shape]
    prompts_of: PromptsOf
    max_tokens: int
    repeats: int
    rates: Sequence[float] = ()
    first_token: Sequence[int] = ()
    profile: bool = False
    together: bool = False

    def tasks(self, side: Side) -> dict[str, dict[str, Any]]:
        """What a side measures, by key, but for the prompts: those are asked for as ``prompts=(context, how many)``."""
        found: dict[str, dict[str, Any]] = {
            f"{side.key} | first token of {length}": {"measure": "first_token", "prompts": (length, FIRST_TOKENS)}
            for length in self.first_token
        }
        for shape in self.shapes:
            found[f"{shape.key} | {side.key}"] = {
                "measure": "decode",
                "prompts": (shape.context, shape.batch),
                "temperature": shape.temperature,
                "max_tokens": self.max_tokens,
                "repeats": self.repeats,
                "profile": self.profile,
            }
        return found


def measure_vllm(
    sides: Sequence[Side], comparison: Comparison, log: Path, journal: Journal, watch: Watch = unwatched
) -> tuple[list[ThroughputRow], dict[str, Any]]:
    """Measure every side; one that fails does not keep the others from being measured.

    Parameters
    ----------
    sides : sequence
        What to compare.
    comparison : Comparison
        What is measured.
    log : Path
        Takes what vLLM logs, with the side's name in it; kept if it fails.
    journal : Journal
        Takes every figure as it comes; what it has is not measured again.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are tasks.

    Returns
    -------
    (list of ThroughputRow, dict)
        Rows by shape and side; and by the side's key what it was told, how it started, and what else was measured.

    Raises
    ------
    ConfigError
        If the plugin does not support a side, before anything is measured.
    ResultError
        If a side failed, after the others.

    """
    told = {side.key: speculative_config(side, comparison.rates) for side in sides}
    total, done, failures = sum(len(comparison.tasks(side)) for side in sides), 0, []
    missing: dict[Side, dict[str, dict[str, Any]]] = {}
    for side in sides:
        left = {key: task for key, task in comparison.tasks(side).items() if key not in journal}
        done += len(comparison.tasks(side)) - len(left)
        if left:
            missing[side] = left
    for group in [[*missing]] if comparison.together else [[side] for side in missing]:
        with ExitStack() as stack:
            processes = {}
            for side in group:
                watch(f"{side.key}: starting vLLM", done, total)
                tasks = [
                    {**task, "key": key, "prompts": comparison.prompts_of(*task["prompts"])}
                    for key, task in missing[side].items()
                ]
                engine = {**comparison.engine, "speculative_config": told[side.key]}
                own_log = log.with_name(f"{log.stem}.{re.sub(r'[^a-z0-9]+', '-', side.label)}{log.suffix}")
                processes[side] = stack.enter_context(side_process(side.key, engine, tasks, own_log))
            lines = {side: process.lines() for side, process in processes.items()}
            started = {}
            for side in group:  # all have started before the first one measures
                try:
                    started[side] = next(lines[side])["started"]
                except ResultError as error:
                    failures.append(error)
            for side, about in started.items():
                journal.append(_started(side), about)
                processes[side].begin()
                try:
                    for line in lines[side]:
                        journal.append(line["key"], line["measured"])
                        done += 1
                        watch(side.key, done, total)
                except ResultError as error:
                    failures.append(error)
    if failures:
        raise ResultError(
            f"{failures[0]}\nThe measurements of the other sides are kept: repeat the command to go on, or leave this "
            "side out"
        )
    rows, about_sides = [], {}
    for shape in comparison.shapes:
        rows += [_row(shape, side, told[side.key], journal) for side in sides]
    for side in sides:
        about_sides[side.key] = {"speculative_config": told[side.key], **journal[_started(side)]}
        if comparison.first_token:
            about_sides[side.key]["seconds_to_first_token"] = {
                str(length): journal[f"{side.key} | first token of {length}"] for length in comparison.first_token
            }
        if comparison.profile:
            about_sides[side.key]["profile"] = {
                shape.key: journal[f"{shape.key} | {side.key}"]["profile"] for shape in comparison.shapes
            }
    return [with_overhead(row, rows) for row in rows], about_sides


def _row(shape: Shape, side: Side, told: Mapping[str, Any] | None, journal: Journal) -> ThroughputRow:
    figures = {name: value for name, value in journal[f"{shape.key} | {side.key}"].items() if name != "profile"}
    measured = Decoding(**figures)
    if isinstance(side, Lookup):
        return bare_row(shape, side.label, dict(side.told), "vllm", measured)
    size = ModelSize(**journal[_started(side)]["size"])
    beside = {name: value for name, value in (told or {}).items() if name != "method"}
    return row_of(shape, side, "vllm", size, measured, beside)


def _started(side: Side) -> str:
    return f"{side.key} | started"
