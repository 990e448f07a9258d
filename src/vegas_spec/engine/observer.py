"""Who may look at drafting while it goes on: an interface, which `vegas_bench.inspect` implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.engine.attention import RowSpan
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.engine.request import Request
from vegas_spec.policies import Queries


class Observer(Protocol):
    """Is told of one run's draft steps, verifications and selections; layers are those with full attention."""

    def drafted(
        self, layer: int, rows: RowSpan, queries: Queries, keys_read: Tensor, positions: Tensor | None = None
    ) -> None:
        """One layer of a request's draft step; the last of ``keys_read`` are those since the prefix.

        ``positions`` is what the step selected, shape ``[num_kv_heads or 1, k]``, if the policy selects at each step.
        """

    def verified(self, layer: int, rows: RowSpan, queries: Queries, keys: Tensor) -> None:
        """One layer of a verification of a request's rows; ``keys`` is all that its last row sees."""

    def selected(self, batch: Sequence[Request], num_accepted: Sequence[int], chosen: Tensor | None) -> None:
        """After a verification: ``chosen`` is the answer of `Policy.select`, one set for every layer."""


class Trace(Protocol):
    """Makes the observers of runs; what `vegas_spec.LLM.generate` takes."""

    def observer(self, cache: KVCache, config: VegasConfig) -> Observer:
        """Give the observer of a run that begins."""
