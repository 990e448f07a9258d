"""How far a measurement is."""

from __future__ import annotations

from collections.abc import Callable

from vegas_spec.engine.outputs import Update

Watch = Callable[[str, float, float], None]
"""Told what is running, how many parts of the work are done (fractions, too) and how many there are."""


def unwatched(label: str, done: float, total: float) -> None:
    """Take no notice."""


class BatchProgress:
    """Prompts of a batch that are done, those under way counted in parts: half for reading, half for writing."""

    def __init__(self, prompts: int, max_tokens: int) -> None:
        self._parts = [0.0] * prompts
        self._max_tokens = max_tokens

    def see(self, update: Update) -> None:
        """Take note of an update of the batch."""
        output = update.output
        read = update.prefilled / len(output.prompt_token_ids)
        written = len(output.outputs[0].token_ids) / self._max_tokens
        self._parts[int(output.request_id)] = 1.0 if output.finished else (read + min(written, 1.0)) / 2

    @property
    def done(self) -> float:
        """Prompts done."""
        return sum(self._parts)
