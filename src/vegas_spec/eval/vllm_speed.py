"""What a setting does on a workload in vLLM: acceptance and speed; what tuning measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.eval.journal import Journal
from vegas_spec.eval.progress import Watch, unwatched
from vegas_spec.eval.tuning import Measurement
from vegas_spec.eval.variants import Variant
from vegas_spec.eval.vllm_side import Case, SideMeasurement, measure_side, speculative_config


class VllmSpeed:
    """Measures settings on prompts that run as one batch, each in an engine and a process of its own.

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
    journal : Journal
        Takes every measurement; what it has is not measured again.
    watch : callable, optional
        See `vegas_spec.eval.progress.Watch`; the parts are settings.
    settings : int
        How many settings there will be, at most.

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
        self._engine = engine
        self._prompts = prompts
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._repeats = repeats
        self._log = log
        self._journal = journal
        self._watch = watch
        self._settings = settings
        self._done = 0

    def __call__(self, config: VegasConfig) -> Measurement:
        """Start vLLM with a config and run the workload `repeats` times."""
        key = Variant(config.policy, config).key
        if key not in self._journal:
            self._watch(f"{key}, in vLLM", self._done, self._settings)
            engine = {**self._engine, "speculative_config": speculative_config(config)}
            case = Case(key, self._prompts, self._temperature)
            for found in measure_side(engine, [case], self._max_tokens, self._repeats, self._log):
                if isinstance(found, tuple):
                    self._journal.append(key, dataclasses.asdict(found[1]))
        self._done += 1
        measured = self._journal.row(key, SideMeasurement)
        return Measurement(
            accepted_per_iteration=measured.accepted_per_iteration or 0.0,
            accepted_by_position=measured.accepted_per_position or [],
            tokens_per_second=measured.tokens_per_second,
            milliseconds=measured.milliseconds,
        )
