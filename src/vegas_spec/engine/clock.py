"""How long parts of a phase take, without waiting for them."""

from __future__ import annotations

import time
from typing import Any

import torch


class Clock:
    """Adds up the time of what is done within ``with clock:``.

    On a GPU it is the time between the two points in the device's own queue of work, so that measuring waits for
    nothing; on a CPU it is wall time.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._begin: Any = None
        self._spans: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        self._begin = self._now()

    def __exit__(self, *_: object) -> None:
        if self._on_gpu:
            self._spans.append((self._begin, self._now()))
        else:
            self._seconds += time.perf_counter() - self._begin

    def take(self) -> float:
        """Give the seconds since the last call, and begin anew; on a GPU, which must have done its work by now."""
        seconds: float = self._seconds + sum(begin.elapsed_time(end) for begin, end in self._spans) / 1e3
        self._seconds = 0.0
        self._spans.clear()
        return seconds

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
