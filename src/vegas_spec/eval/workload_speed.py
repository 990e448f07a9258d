"""What a setting does on a workload in the embedded engine: acceptance, speed, phases; what tuning measures."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from vegas_spec.config import VegasConfig
from vegas_spec.engine.llm import LLM, Prompt
from vegas_spec.engine.prefilled import PrefilledPrompt
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.eval.decode_speed import DecodeRun, decode_run
from vegas_spec.eval.journal import Journal
from vegas_spec.eval.progress import Watch, unwatched
from vegas_spec.eval.tuning import Measurement
from vegas_spec.eval.variants import Variant


class WorkloadSpeed:
    """Measures settings on prompts that run as one batch; see `vegas_spec.eval.tuning.Measure`.

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
    journal : Journal
        Takes every measurement; what it has is not measured again.
    watch : callable, optional
        See `vegas_spec.eval.progress.Watch`; the parts are settings.
    settings : int
        How many settings there will be, at most.

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
        self._llm = llm
        self._prompts = prompts
        self._read: Sequence[PrefilledPrompt] = ()
        self._params = params
        self._repeats = repeats
        self._journal = journal
        self._watch = watch
        self._settings = settings
        self._done = 0

    def __call__(self, config: VegasConfig) -> Measurement:
        """Run the workload with a config, `repeats` times."""
        key = Variant(config.policy, config).key
        if key not in self._journal:
            if not self._read:
                self._watch("reading prompts", self._done, self._settings)
                self._read = self._llm.prefill(self._prompts)
            engine = self._llm.with_config(**config.to_dict())
            runs = [self._run(engine, key, repeat) for repeat in range(self._repeats)]
            measured = Measurement(
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
            self._journal.append(key, dataclasses.asdict(measured))
        self._done += 1
        return self._journal.row(key, Measurement)

    def _run(self, engine: LLM, key: str, repeat: int) -> DecodeRun:
        def see(share: float) -> None:
            self._watch(key, self._done + (repeat + share) / self._repeats, self._settings)

        return decode_run(engine, self._read, self._params, see)
