"""What a trace of drafting says, against plain loops over sets."""

from __future__ import annotations

import json
from math import isnan

import pytest
import torch
from torch import Tensor

from vegas_spec.config import ConfigError
from vegas_spec.engine.trace import IterationTrace, SelectionTrace, summarise


def an_iteration(steps: int, recall: float, overlap: Tensor) -> IterationTrace:
    shares = torch.full((steps, *overlap.shape[:2]), recall)
    return IterationTrace(
        request_id="0",
        iteration=0,
        prefix_len=40,
        top_k=4,
        drafted=steps,
        accepted=0,
        layers=(1, 3),
        positions=None,
        recall=shares,
        mass=shares / 2,
        oracle_mass=torch.ones_like(shares),
        kept=None,
        overlap=overlap,
    )


def overlap_of(sets: list[set[int]]) -> Tensor:
    shares = torch.tensor([[len(a & b) / len(a) for b in sets] for a in sets])
    return shares.expand(2, 1, -1, -1)


def test_overlap_by_distance_is_the_mean_over_pairs() -> None:
    sets = [{1, 2, 3, 4}, {1, 2, 3, 9}, {1, 2, 8, 9}]
    trace = an_iteration(2, 1.0, overlap_of(sets))
    assert trace.overlap_by_distance().tolist() == [[[0.75]] * 2, [[0.5]] * 2]
    by_hand = [(3 / 5 + 3 / 5) / 2, 2 / 6]
    torch.testing.assert_close(trace.jaccard_by_distance()[:, 0, 0], torch.tensor(by_hand))


def test_a_summary_counts_every_iteration_as_far_as_it_drafted() -> None:
    longer = an_iteration(2, 1.0, overlap_of([{1, 2}, {1, 3}, {1, 2}]))
    shorter = an_iteration(1, 0.25, overlap_of([{1, 2}, {1, 2}]))
    summary = summarise([longer, shorter, an_iteration(0, 0.0, overlap_of([{1}]))])
    assert summary.iterations == 2
    assert summary.recall == pytest.approx((4 * 1.0 + 2 * 0.25) / 6)
    assert summary.recall_by_layer == {1: pytest.approx(0.75), 3: pytest.approx(0.75)}
    assert summary.recall_by_step == [pytest.approx(0.625), 1.0]
    assert summary.overlap_by_distance == [pytest.approx(0.75), 1.0]
    assert isnan(summary.kept)
    json.dumps(summary.to_dict())


def test_a_summary_of_nothing() -> None:
    summary = SelectionTrace().summary()
    assert (summary.iterations, summary.overlap_by_distance, summary.recall_by_layer) == (0, [], {})
    assert isnan(summary.recall)


def test_how_often_to_look_is_checked() -> None:
    with pytest.raises(ConfigError, match="every must be"):
        SelectionTrace(every=0)
