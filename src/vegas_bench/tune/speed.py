"""What a setting does on a workload, acceptance and speed, measured once for each: what tuning asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vegas_bench.measure.decoding import Decoding, together
from vegas_bench.measure.embedded_engine import decode_run
from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.variants import Variant
from vegas_bench.measure.vllm_side import side_process, speculative_config, variant_of
from vegas_bench.results.journal import Journal
from vegas_spec.config import VegasConfig
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.request import PrefilledPrompt
from vegas_spec.engine.sampling_params import SamplingParams

Say = Callable[[str, float], None]
"""Told what is going on, and which share of the present setting is done."""

Run = Callable[[VegasConfig, str, Say], Decoding]
"""Runs the workload with a config, which has a name, some times."""


class WorkloadSpeed:
    """Measures settings on prompts that run as one batch.

    Parameters
    ----------
    run : callable
        See `Run`.
    journal : Journal
        Takes every measurement; what it has is not measured again.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are settings.
    settings : int
        How many settings there will be, at most.

    """

    def __init__(self, run: Run, journal: Journal, watch: Watch = unwatched, settings: int = 1) -> None:
        self._run, self._journal, self._watch, self._settings = run, journal, watch, settings
        self._done = 0

    def __call__(self, config: VegasConfig) -> Decoding:
        """Give what the workload does with a config."""
        key = Variant(config.policy, config).key
        if key not in self._journal:
            measured = self._run(
                config, key, lambda label, share: self._watch(label, self._done + share, self._settings)
            )
            self._journal.append(key, dataclasses.asdict(measured))
        self._done += 1
        return self._journal.row(key, Decoding)


def in_embedded_engine(llm: LLM, prompts: Sequence[Prompt], params: SamplingParams, repeats: int) -> Run:
    """Measure on one loaded model, with room for all prompts in one batch; they are read once, for all settings."""
    read: list[PrefilledPrompt] = []

    def run(config: VegasConfig, key: str, say: Say) -> Decoding:
        if not read:
            say("reading prompts", 0.0)
            read.extend(llm.prefill(prompts))
        engine = llm.with_config(**config.to_dict())

        def once(repeat: int) -> Decoding:
            return decode_run(engine, read, params, lambda share: say(key, (repeat + share) / repeats))

        return together([once(repeat) for repeat in range(repeats)])

    return run


def in_vllm(engine: Mapping[str, Any], task: Mapping[str, Any], log: Path) -> Run:
    """Measure each setting in an engine and a process of its own.

    Parameters
    ----------
    engine : mapping
        Arguments of `vllm.LLM`.
    task : mapping
        Arguments of `vegas_bench.measure.vllm_engine.Engine.decode`.
    log : Path
        Takes what vLLM logs; kept if it fails.

    """

    def run(config: VegasConfig, key: str, say: Say) -> Decoding:
        say(f"{key}, in vLLM", 0.0)
        arguments = {**engine, "speculative_config": speculative_config(variant_of(config))}
        whole = {"key": key, "measure": "decode", "profile": False, **task}
        with side_process(key, arguments, [whole], log) as process:
            process.begin()
            *_, last = process.lines()
        measured = {name: value for name, value in last["measured"].items() if name != "profile"}
        return Decoding(**measured)

    return run
