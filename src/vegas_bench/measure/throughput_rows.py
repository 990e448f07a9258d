"""Rows of results from what sides measured, with what the cost model predicts and what selection costs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vegas_bench.measure.embedded_engine import DecodeRun
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.variants import Variant
from vegas_bench.results.results import EngineName, ThroughputRow
from vegas_spec.pacing.cost_model import memory_bound


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
    floors = memory_bound(size.weight_bytes, size.kv_bytes_per_token * context * batch, share)
    return floors.speedup(gamma, accepted)


def embedded_row(shape: Shape, variant: Variant, runs: Sequence[DecodeRun], size: ModelSize) -> ThroughputRow:
    """Say a side's runs in the embedded engine in the terms of results."""
    plain, config = variant.config.policy == "full", variant.config
    accepted = None if plain else statistics.mean(run.accepted_per_iteration for run in runs)
    by_position = [statistics.mean(each) for each in zip(*(run.accepted_by_position for run in runs), strict=True)]
    phases = {name: statistics.median(run.milliseconds[name] for run in runs) for name in runs[0].milliseconds}
    selection = phases.pop("selection")
    share = statistics.mean(run.draft_kv_share for run in runs)
    gamma = config.num_speculative_tokens
    return _row(
        shape,
        variant,
        "embedded",
        tokens_per_second=[run.tokens_per_second for run in runs],
        accepted_per_iteration=accepted,
        accepted_per_position=None if plain else by_position,
        milliseconds=phases,
        selection_overhead=selection / _verification(phases, selection, config.policy) if selection else None,
        predicted_speedup=predicted_speedup(size, shape.context, shape.batch, gamma, accepted, share),
    )


def _verification(phases: Mapping[str, float], selection: float, policy: str) -> float:
    """Time of a verification without scores: vegas scores within it, others in drafts or in passes of their own."""
    return phases["verify"] + phases["select"] - selection if policy == "vegas" else phases["verify"]


def vllm_row(shape: Shape, variant: Variant, size: ModelSize, measured: Mapping[str, Any]) -> ThroughputRow:
    """Say a side of vLLM in the terms of results; `measured` has the fields of `vllm_side.SideMeasurement`."""
    config = variant.config
    share = 1.0 if variant.reads_everything else config.budget(shape.context) / shape.context
    accepted, gamma = measured["accepted_per_iteration"], config.num_speculative_tokens
    predicted = predicted_speedup(size, shape.context, shape.batch, gamma, accepted, share)
    return _row(shape, variant, "vllm", **measured, predicted_speedup=predicted)


def _row(shape: Shape, variant: Variant, engine: EngineName, **figures: Any) -> ThroughputRow:
    return ThroughputRow(
        policy=variant.label,
        config={} if variant.config.policy == "full" else variant.config.to_dict(),
        engine=engine,
        context=shape.context,
        batch=shape.batch,
        temperature=shape.temperature,
        **figures,
    )


def with_overhead(row: ThroughputRow, rows: Sequence[ThroughputRow]) -> ThroughputRow:
    """Add selection's overhead as seen from outside: against a side that verifies as many rows and selects nothing.

    Not where what selecting takes is in the draft: drafts that select for themselves (quest), and in vLLM a pass of its
    own before them (specextend).
    """
    if row.milliseconds is None or not _selects(row) or row.config["policy"] == "quest":
        return row
    if row.config["policy"] == "specextend" and row.engine == "vllm":
        return row

    def point(of: ThroughputRow) -> tuple[Any, ...]:
        return of.context, of.batch, of.temperature, of.config["num_speculative_tokens"]

    for other in rows:
        if other.config and other.milliseconds is not None and not _selects(other) and point(other) == point(row):
            spent = row.milliseconds["verify"] + row.milliseconds.get("select", 0.0)
            return dataclasses.replace(row, selection_overhead=spent / other.milliseconds["verify"] - 1)
    return row


def _selects(row: ThroughputRow) -> bool:
    return bool(row.config) and row.config["policy"] not in ("dense", "stream")
