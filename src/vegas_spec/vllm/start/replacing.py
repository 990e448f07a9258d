"""How a function of vLLM's is replaced by ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_vegas_original"

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def replace(owner: Any, name: str, wrap: Wrapper) -> None:
    """Put ``wrap(original)`` in the place of a function, method or property; a second time is no time."""
    current = vars(owner)[name]
    original = getattr(current, "__func__", None) or getattr(current, "fget", None) or current
    if hasattr(original, _MARK):
        return
    wrapped = functools.wraps(original)(wrap(original))
    setattr(wrapped, _MARK, original)
    kind = type(current)
    setattr(owner, name, kind(wrapped) if kind in (staticmethod, classmethod, property) else wrapped)
