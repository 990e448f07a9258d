"""One request on its way through the engine, and prompts that were read before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vegas_spec.engine.kv_cache import KVCache, LayerSpec
from vegas_spec.engine.model import Model
from vegas_spec.engine.outputs import RequestOutput
from vegas_spec.engine.sampler import Sampler
from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.engine.text import TextStream


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


@dataclass(eq=False)
class Request:
    """State of one request; its committed tokens are ``token_ids``.

    Keys and values of all committed tokens but the last are in the cache. ``drafts`` follow the committed tokens, with
    the distributions they were drawn from, until verification has judged them.
    """

    output: RequestOutput
    params: SamplingParams
    sampler: Sampler
    text: TextStream
    eos_token_ids: frozenset[int]
    max_length: int
    """Most tokens, prompt included."""
    token_ids: list[int]
    prefilled: PrefilledPrompt | None = None
    """The prompt's keys and values, if it was read before."""
    slot: int = -1
    prefix_len: int = 0
    """Tokens that the last verification's first row saw, itself included; 0 before the first verification."""
    num_selected: int = 0
    """Entries of the prefix that a draft step reads per KV head of a layer with full attention."""
    drafts: list[int] = field(default_factory=list)
    draft_probs: list[Tensor] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be generated."""
        return self.output.finished

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.max_length - len(self.token_ids)

    def commit(self, tokens: Sequence[int], num_accepted: int, num_drafts: int) -> int:
        """Take the tokens of one verification, as far as the request goes on, and return how many were taken.

        The first `num_accepted` are accepted drafts, the one after them the model's own.
        """
        completion = self.output.outputs[0]
        self.drafts.clear()
        self.draft_probs.clear()
        for taken, token in enumerate(tokens, start=1):
            self.token_ids.append(token)
            self.sampler.commit([token])
            completion.token_ids.append(token)
            own = "bonus" if num_accepted == num_drafts else "corrected"
            completion.token_origins.append("accepted" if taken <= num_accepted else own)  # type: ignore[arg-type]
            self._check_stop(token)
            if self.finished:
                return taken
        return len(tokens)

    def count_draft_step(self, layers: Sequence[LayerSpec], seen: int) -> None:
        """Count what a draft step reads when its row is at position ``seen - 1``, and what a dense one would."""
        stats = self.output.stats
        recent = seen - self.prefix_len
        for layer in layers:
            dense = seen if layer.sliding_window is None else min(seen, layer.sliding_window)
            read = self.num_selected + recent if layer.sliding_window is None else dense
            stats.draft_kv_entries += read * layer.num_kv_heads
            stats.draft_kv_entries_dense += dense * layer.num_kv_heads

    def count_verification(self, layers: Sequence[LayerSpec], seen: int) -> None:
        """Count what a verification reads whose last row is at position ``seen - 1``."""
        for layer in layers:
            window = seen if layer.sliding_window is None else layer.sliding_window + len(self.drafts)
            self.output.stats.verify_kv_entries += min(seen, window) * layer.num_kv_heads

    def _check_stop(self, token: int) -> None:
        completion = self.output.outputs[0]
        if token in self.eos_token_ids and not self.params.ignore_eos:
            self._finish("stop")
        elif token in self.params.stop_token_ids:
            completion.stop_reason = token
            self._finish("stop")
        else:
            completion.text, stop = self.text.append(token)
            if stop is not None:
                completion.stop_reason = stop
                self.output.finished = True
                completion.finish_reason = "stop"
            elif self.remaining <= 0:
                self._finish("length")

    def fail(self, reason: str) -> None:
        """End the request because the model's output cannot be used; what was generated stays."""
        self.output.error = reason
        self._finish("error")

    def _finish(self, reason: str) -> None:
        completion = self.output.outputs[0]
        completion.text = self.text.flush()
        completion.finish_reason = reason  # type: ignore[assignment]
        self.output.finished = True
