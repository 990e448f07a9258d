"""Calls of a worker's methods, timed on its device: what `figures` and `iteration_times` measure by."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from vegas_spec.device_time import now


class TimedCalls:
    """Times methods of objects from `add` to `stop`; nothing waits for the device.

    Parameters
    ----------
    device : torch.device
        On whose current stream the calls queue their work.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._added: list[tuple[Any, str, Any]] = []

    def add(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Time ``owner.name``; after every call, ``note`` gets its begin, its end and its arguments by name.

        Names are those of the method's signature, defaults filled in: callers pass by position what they like to.
        """
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @functools.wraps(original)  # so that another timing of the method finds its signature
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = now(self._device)
            result = original(*args, **kwargs)
            end = now(self._device)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            note(start, end, bound.arguments)
            return result

        self._added.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, timed)

    def stop(self) -> None:
        """Leave the objects as they were, the last one added first."""
        while self._added:
            owner, name, own = self._added.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
