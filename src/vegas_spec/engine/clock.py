"""How long parts of a phase take, without waiting for them."""

from __future__ import annotations

import torch

from vegas_spec.device_time import Moment, now, seconds_between


class Clock:
    """Adds up the time of what is done within ``with clock:``; see `vegas_spec.device_time`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin: Moment = None
        self._spans: list[tuple[Moment, Moment]] = []

    def __enter__(self) -> None:
        self._begin = now(self._device)

    def __exit__(self, *_: object) -> None:
        self._spans.append((self._begin, now(self._device)))

    def take(self) -> float:
        """Give the seconds since the last call, and begin anew."""
        seconds = sum((seconds_between(begin, end) for begin, end in self._spans), 0.0)
        self._spans.clear()
        return seconds
