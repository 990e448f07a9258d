"""Rows of results from what sides measured, with what the cost model predicts and what selection costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vegas_bench.measure.decoding import Decoding
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.variants import NOTHING, Variant
from vegas_bench.results.results import EngineName, ThroughputRow
from vegas_spec.pacing.costs import CostModel, Overheads
from vegas_spec.policies import Policy, policy_class


@dataclass(frozen=True)
class Shape:
    """What sides are compared at."""

    context: int
    batch: int
    temperature: float

    @property
    def key(self) -> str:
        """Identifies it among the shapes of a run."""
        return f"{self.context} x {self.batch}, temperature {self.temperature:g}"


def predicted_speedup(
    size: ModelSize, context: int, batch: int, gamma: int, accepted: float | None, share: float
) -> float | None:
    """Speed-up of a memory-bound decoder with this acceptance; None for plain decoding.

    Parameters
    ----------
    share : float
        Of the cache that a draft step reads.

    """
    if accepted is None or not size.weight_bytes:
        return None
    floors = CostModel(size.weight_bytes, size.kv_bytes_per_token, overheads=Overheads())
    tokens = context * batch
    return floors.costs(tokens, share * tokens).speedup(gamma, accepted)


def row_of(
    shape: Shape,
    variant: Variant,
    engine: EngineName,
    size: ModelSize,
    measured: Decoding,
    beside: Mapping[str, Any] = NOTHING,
) -> ThroughputRow:
    """Say what a side measured in the terms of results; `beside` is what it ran with besides the method's options."""
    config, policy = variant.config, policy_class(variant.config.policy)
    accepted = measured.accepted_per_iteration if policy.speculates else None
    share = measured.draft_kv_share
    if share is None:
        share = config.budget(shape.context) / shape.context if policy.selects else 1.0
    gamma = config.num_speculative_tokens
    return bare_row(
        shape,
        variant.label,
        {**config.to_dict(), **beside} if policy.speculates else {},
        engine,
        dataclasses.replace(measured, accepted_per_iteration=accepted),
        selection_overhead=_overhead(measured, policy),
        predicted_speedup=predicted_speedup(size, shape.context, shape.batch, gamma, accepted, share),
    )


def bare_row(
    shape: Shape, label: str, config: dict[str, Any], engine: EngineName, measured: Decoding, **figures: Any
) -> ThroughputRow:
    """Give a side's row, with no more in it than was measured and is given."""
    accepted = measured.accepted_per_iteration
    return ThroughputRow(
        policy=label,
        config=config,
        engine=engine,
        context=shape.context,
        batch=shape.batch,
        temperature=shape.temperature,
        tokens_per_second=measured.tokens_per_second,
        accepted_per_iteration=accepted,
        accepted_per_position=None if accepted is None else measured.accepted_per_position,
        milliseconds=measured.milliseconds,
        **figures,
    )


def _overhead(measured: Decoding, policy: type[Policy]) -> float | None:
    """Selection's share of a verification without it, where the engine's clock tells them apart."""
    selection, phases = measured.selection_milliseconds, measured.milliseconds
    if not selection or phases is None:
        return None
    # Scores are computed within a verification; others choose in drafts, or in passes of their own.
    plain = phases["verify"] + phases["select"] - selection if policy.scores else phases["verify"]
    return selection / plain


def with_overhead(row: ThroughputRow, rows: Sequence[ThroughputRow]) -> ThroughputRow:
    """Add selection's overhead as seen from outside: against a side that verifies as many rows and chooses nothing.

    Not where what choosing takes counts as drafting: it does in drafts that choose for themselves, and in vLLM in a
    pass of its own before them.
    """
    policy = _policy(row)
    if row.milliseconds is None or policy is None:
        return row
    if not (policy.scores or (policy.keeps_queries and row.engine == "embedded")):
        return row

    def point(of: ThroughputRow) -> tuple[Any, ...]:
        return of.context, of.batch, of.temperature, of.config["num_speculative_tokens"]

    for other in rows:
        rival = _policy(other)
        if rival is None or other.milliseconds is None or rival.scores or rival.per_step or rival.keeps_queries:
            continue
        if point(other) == point(row):
            spent = row.milliseconds["verify"] + row.milliseconds.get("select", 0.0)
            return dataclasses.replace(row, selection_overhead=spent / other.milliseconds["verify"] - 1)
    return row


def _policy(row: ThroughputRow) -> type[Policy] | None:
    """The policy that a row drafts with; None for plain decoding, and for drafts of vLLM's own."""
    return policy_class(row.config["policy"]) if "policy" in row.config else None
