"""`WorkloadSpeed` in vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.vllm_side import Case, measure_side, speculative_config
from vegas_bench.results.journal import Journal
from vegas_bench.tune.tuner import Measurement
from vegas_bench.tune.workload_speed import WorkloadSpeed
from vegas_spec.config import VegasConfig


class VllmSpeed(WorkloadSpeed):
    """Measures settings each in an engine and a process of its own.

    Parameters
    ----------
    engine : mapping
        Arguments of `vllm.LLM`.
    prompts : sequence
        Token ids of the workload.
    temperature : float
        Of sampling.
    max_tokens, repeats : int
        Of each output; timed runs of each setting.
    log : Path
        Takes what vLLM logs; kept if it fails.
    journal, watch, settings
        Those of `WorkloadSpeed`.

    """

    def __init__(
        self,
        engine: Mapping[str, Any],
        prompts: Sequence[Sequence[int]],
        temperature: float,
        max_tokens: int,
        repeats: int,
        log: Path,
        journal: Journal,
        watch: Watch = unwatched,
        settings: int = 1,
    ) -> None:
        super().__init__(journal, watch, settings)
        self._engine = engine
        self._prompts = prompts
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._repeats = repeats
        self._log = log

    def _measure(self, config: VegasConfig, key: str) -> Measurement:
        self._say(f"{key}, in vLLM")
        engine = {**self._engine, "speculative_config": speculative_config(config)}
        case = Case(key, self._prompts, self._temperature)
        found = measure_side(engine, [case], self._max_tokens, self._repeats, self._log)
        [measured] = [each[1] for each in found if isinstance(each, tuple)]
        return Measurement(
            accepted_per_iteration=measured.accepted_per_iteration or 0.0,
            accepted_by_position=measured.accepted_per_position or [],
            tokens_per_second=measured.tokens_per_second,
            milliseconds=measured.milliseconds,
        )
