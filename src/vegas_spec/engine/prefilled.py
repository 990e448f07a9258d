"""Prompts that were read once, for any number of runs to go on from."""

from __future__ import annotations

from dataclasses import dataclass

from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.engine.model import Model


@dataclass(frozen=True, eq=False)
class PrefilledPrompt:
    """A prompt and the keys and values of all its tokens but the last; made by `vegas_spec.LLM.prefill`.

    It takes as much memory as the prompt does in a run's cache, into which it is copied when a run begins with it; runs
    do not change it.
    """

    model: Model
    text: str | None
    token_ids: tuple[int, ...]
    entries: KVCache
    """Of one slot."""

    def copy_to(self, cache: KVCache, slot: int) -> None:
        """Write the entries into a slot of another cache of the same model."""
        for layer in cache.layers:
            cache.write(layer.index, slot, 0, *self.entries.read(layer.index, 0, 0, len(self.token_ids) - 1))
