"""What a setting does on a workload: acceptance and speed, measured once for each; what tuning asks."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

from vegas_bench.measure.progress import Watch, unwatched
from vegas_bench.measure.variants import Variant
from vegas_bench.results.journal import Journal
from vegas_bench.tune.tuner import Measurement
from vegas_spec.config import VegasConfig


class WorkloadSpeed(ABC):
    """Measures settings on prompts that run as one batch; see `vegas_bench.tune.tuner.Measure`.

    Parameters
    ----------
    journal : Journal
        Takes every measurement; what it has is not measured again.
    watch : callable, optional
        See `vegas_bench.measure.progress.Watch`; the parts are settings.
    settings : int
        How many settings there will be, at most.

    """

    def __init__(self, journal: Journal, watch: Watch = unwatched, settings: int = 1) -> None:
        self._journal = journal
        self._watch = watch
        self._settings = settings
        self._done = 0

    def __call__(self, config: VegasConfig) -> Measurement:
        """Give what the workload does with a config."""
        key = Variant(config.policy, config).key
        if key not in self._journal:
            self._journal.append(key, dataclasses.asdict(self._measure(config, key)))
        self._done += 1
        return self._journal.row(key, Measurement)

    @abstractmethod
    def _measure(self, config: VegasConfig, key: str) -> Measurement:
        """Run the workload with a config, which `key` names, some times."""

    def _say(self, label: str, share: float = 0.0) -> None:
        """Tell what is going on, and which share of the present setting is done."""
        self._watch(label, self._done + share, self._settings)
