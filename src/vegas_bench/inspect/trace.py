"""What an observer of drafting notes: which entries were selected, and how good a choice that was.

    trace = SelectionTrace()
    llm.generate(prompts, params, trace=trace)
    trace.summary().recall

A trace costs what it measures (exact scores of every draft step and every verified row): look at acceptance and
selection with one, take times without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class IterationTrace:
    """One selection, the draft over it, and the verification of that draft, of one request.

    Tensors are on the CPU. Layers are those with full attention (`layers` has their indices), steps the drafted tokens,
    rows the verified ones: row 0 is the last committed token, row ``j`` the draft at distance ``j``. Scores are softmax
    weights over all keys that a row sees, summed over the query heads of a KV head (`vegas_spec.selection.score_rows`);
    a *top set* is the ``top_k`` best-scored positions of the prefix. Where a layer has fewer KV heads than another one,
    the rest is NaN (`NO_POSITION` among positions).
    """

    request_id: str
    iteration: int
    """Number of the selection within the request; 0 is the one that followed the prompt."""
    prefix_len: int
    """Positions ``[0, prefix_len)`` could be selected."""
    top_k: int
    """`VegasConfig.budget` of the prefix: the size of the top sets that `recall` compares with."""
    drafted: int
    accepted: int
    layers: tuple[int, ...]
    positions: Tensor | None
    """Selected positions, int32, shape ``[1 or steps, layers, kv_heads, k]``: ascending, then `NO_POSITION`. The first
    size is 1 for a policy that selects once per iteration. None for a policy that leaves nothing out, for one that
    selects at each step where there was none, and with ``positions=False``."""
    recall: Tensor
    """Share of each draft step's own top set that was selected, float32, shape ``[steps, layers, kv_heads]``. The top
    set by the step's own query is what the policy ``oracle`` reads."""
    mass: Tensor
    """Share of each draft step's softmax weight on the prefix that the selected positions hold, same shape."""
    oracle_mass: Tensor
    """The same share for the step's own top set: the most that so many entries can hold."""
    kept: Tensor | None
    """Share of this selection that the request's previous one had too, float32, shape ``[layers, kv_heads]``; None for
    the first one, with ``every`` above 1, and for a policy that leaves nothing out. Of a policy that selects at each
    step, the first steps'."""
    overlap: Tensor
    """``|A_i & A_j| / k`` of the top sets of verified rows ``i`` and ``j`` (of the prefix that ends at row 0, which is
    longer than `prefix_len` by what was committed in between), float32, shape ``[layers, kv_heads, rows, rows]``."""

    def overlap_by_distance(self) -> Tensor:
        """Mean ``|A & B| / k`` over pairs of verified rows at distance 1, 2, ...: ``[rows - 1, layers, kv_heads]``."""
        return _mean_by_distance(self.overlap)

    def jaccard_by_distance(self) -> Tensor:
        """Mean ``|A & B| / |A | B|`` over the same pairs, same shape."""
        return _mean_by_distance(self.overlap / (2 - self.overlap))


def _mean_by_distance(pairs: Tensor) -> Tensor:
    rows = pairs.shape[-1]
    means = [pairs.diagonal(distance, -2, -1).mean(-1) for distance in range(1, rows)]
    return torch.stack(means) if means else pairs.new_empty(0, *pairs.shape[:2])


@dataclass(frozen=True)
class TraceSummary:
    """Means over iterations, layers and KV heads; NaN where there was nothing to look at."""

    iterations: int
    recall: float
    mass: float
    oracle_mass: float
    kept: float
    recall_by_layer: dict[int, float]
    """By index of the layer."""
    mass_by_layer: dict[int, float]
    recall_by_step: list[float]
    """By draft step: the first one is the nearest to the selection."""
    overlap_by_distance: list[float]
    """Mean ``|A & B| / k`` of the top sets of two verified rows at distance 1, 2, ..."""
    jaccard_by_distance: list[float]

    def to_dict(self) -> dict[str, Any]:
        """All figures, fit for JSON."""
        return dataclasses.asdict(self)


def summarise(iterations: Iterable[IterationTrace]) -> TraceSummary:
    """Average over iterations; every draft step, and every pair of rows' distance, of each counts once."""
    traces = [trace for trace in iterations if trace.drafted]
    layers = traces[0].layers if traces else ()
    recalls, masses = [trace.recall for trace in traces], [trace.mass for trace in traces]
    return TraceSummary(
        iterations=len(traces),
        recall=_mean(recalls),
        mass=_mean(masses),
        oracle_mass=_mean([trace.oracle_mass for trace in traces]),
        kept=_mean([trace.kept for trace in traces if trace.kept is not None]),
        recall_by_layer={layer: _mean([each[:, at] for each in recalls]) for at, layer in enumerate(layers)},
        mass_by_layer={layer: _mean([each[:, at] for each in masses]) for at, layer in enumerate(layers)},
        recall_by_step=_means_by_row(recalls),
        overlap_by_distance=_means_by_row([trace.overlap_by_distance() for trace in traces]),
        jaccard_by_distance=_means_by_row([trace.jaccard_by_distance() for trace in traces]),
    )


def _mean(tensors: Sequence[Tensor]) -> float:
    return float(torch.cat([each.flatten() for each in tensors]).nanmean()) if tensors else float("nan")


def _means_by_row(tensors: Sequence[Tensor]) -> list[float]:
    most = max((len(each) for each in tensors), default=0)
    return [_mean([each[row] for each in tensors if len(each) > row]) for row in range(most)]
