"""Moments of a device's time: on a GPU in its own queue of work, so that noting one waits for nothing."""

from __future__ import annotations

import time
from typing import Any

import torch

Moment = Any
"""Seconds on a CPU, an event on a GPU."""


def now(device: torch.device) -> Moment:
    """Note this moment."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Moment, end: Moment) -> float:
    """Seconds from one moment to another; waits until the device has come to the latter."""
    if isinstance(end, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
