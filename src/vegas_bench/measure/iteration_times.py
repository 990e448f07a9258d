"""What an iteration takes on the device: drafting, and all the rest. For benchmarks; operators have `figures`."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from vegas_spec.device_time import Moment, seconds_between
from vegas_spec.vllm.worker.timed_calls import TimedCalls

FEWEST = 10
"""Drafts that a median is taken of, at least. Chosen by hand."""


class IterationTimes:
    """Times the drafts of a worker, whichever speculator makes them; without a GPU or a speculator, nothing."""

    def __init__(self, worker: Any) -> None:
        self.drafts: list[tuple[Moment, Moment]] = []
        runner = worker.model_runner
        speculator = getattr(runner, "speculator", None)
        if speculator is not None and runner.device.type == "cuda":
            TimedCalls(runner.device).add(speculator, "propose", self.note)

    def note(self, start: Moment, end: Moment, _: Any) -> None:
        """Remember a draft."""
        self.drafts.append((start, end))

    def read(self) -> dict[str, float] | None:
        """Medians in milliseconds since the last reading: drafting, and all else in an iteration (verification)."""
        drafts, self.drafts = self.drafts, []
        if len(drafts) < FEWEST:
            return None
        between = [(before[1], after[0]) for before, after in itertools.pairwise(drafts)]
        return {"draft": _median(drafts), "verify": _median(between)}


def install(worker: Any) -> None:
    """On a worker."""
    worker.vegas_iteration_times = IterationTimes(worker)


def read(worker: Any) -> dict[str, float] | None:
    """On a worker; None where nothing was timed, or too little."""
    times: dict[str, float] | None = worker.vegas_iteration_times.read()
    return times


def _median(spans: list[tuple[Moment, Moment]]) -> float:
    return 1e3 * statistics.median(seconds_between(start, end) for start, end in spans)
