"""`WorkloadSpeed` in the embedded engine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from vegas_bench.measure.embedded_engine import DecodeRun, decode_run
from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.results.journal import Journal
from vegas_bench.tune.tuner import Measurement
from vegas_bench.tune.workload_speed import WorkloadSpeed
from vegas_spec.config import VegasConfig
from vegas_spec.engine.llm import LLM
from vegas_spec.engine.prompts import Prompt
from vegas_spec.engine.request import PrefilledPrompt
from vegas_spec.engine.sampling_params import SamplingParams


class EmbeddedSpeed(WorkloadSpeed):
    """Measures settings on one loaded model.

    Parameters
    ----------
    llm : LLM
        The model, with room for all prompts in one batch.
    prompts : sequence
        The workload; read once, for all settings.
    params : SamplingParams
        For all prompts.
    repeats : int
        Timed runs of each setting.
    journal, watch, settings
        Those of `WorkloadSpeed`.

    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        repeats: int,
        journal: Journal,
        watch: Watch = unwatched,
        settings: int = 1,
    ) -> None:
        super().__init__(journal, watch, settings)
        self._llm = llm
        self._prompts = prompts
        self._read: Sequence[PrefilledPrompt] = ()
        self._params = params
        self._repeats = repeats

    def _measure(self, config: VegasConfig, key: str) -> Measurement:
        if not self._read:
            self._say("reading prompts")
            self._read = self._llm.prefill(self._prompts)
        engine = self._llm.with_config(**config.to_dict())
        runs = [self._run(engine, key, repeat) for repeat in range(self._repeats)]
        return Measurement(
            accepted_per_iteration=statistics.mean(run.accepted_per_iteration for run in runs),
            accepted_by_position=[
                statistics.mean(each) for each in zip(*(run.accepted_by_position for run in runs), strict=True)
            ],
            tokens_per_second=[run.tokens_per_second for run in runs],
            milliseconds={
                phase: statistics.median(run.milliseconds[phase] for run in runs)
                for phase in runs[0].milliseconds
                if phase != "selection"  # a part of the others
            },
        )

    def _run(self, engine: LLM, key: str, repeat: int) -> DecodeRun:
        def see(share: float) -> None:
            self._say(key, (repeat + share) / self._repeats)

        return decode_run(engine, self._read, self._params, see)
