"""The oracle reads what the step's own query wants most, against plain loops."""

from __future__ import annotations

from math import exp

import pytest
import torch
from policy_cases import verified
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Queries
from vegas_spec.policies.oracle import OraclePolicy

HEADS, KV_HEADS, DIM, KEYS, PREFIX = 4, 2, 8, 50, 43


def best_by_loops(queries: Queries, keys: Tensor, score: str, granularity: str, count: int) -> list[list[int]]:
    groups = KV_HEADS if granularity == "kv_head" else 1
    scores = [[0.0] * PREFIX for _ in range(groups)]
    for head in range(HEADS):
        query = queries.query[head, 0].double()
        logits = [float(query @ key) * queries.scale for key in keys[head // 2].double()]
        sink = 0.0 if queries.sinks is None else exp(float(queries.sinks[head]))
        total = sum(exp(logit) for logit in logits) + sink
        for at in range(PREFIX):
            scores[head // (HEADS // groups)][at] += exp(logits[at]) / total if score == "weight" else logits[at]
    return [sorted(sorted(range(PREFIX), key=lambda at, row=row: row[at])[-count:]) for row in scores]  # type: ignore[misc]


@pytest.mark.parametrize("sinks", [None, torch.tensor([3.0, -1.0, 0.0, 5.0])], ids=["", "sinks"])
@pytest.mark.parametrize("granularity", ["kv_head", "layer"])
@pytest.mark.parametrize("score", ["weight", "logit"])
def test_it_reads_the_best_of_the_prefix(score: str, granularity: str, sinks: Tensor | None):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(KV_HEADS, KEYS, DIM, generator=generator)
    keys[:, PREFIX:] *= 3  # what came since the prefix takes weight, and is never chosen
    queries = Queries(torch.randn(HEADS, 1, DIM, generator=generator), 0.7, sinks)
    options = {"score": score, "granularity": granularity}
    policy = OraclePolicy(VegasConfig(kv_budget=0.2, kv_budget_min=1, **options))  # type: ignore[arg-type]
    assert policy.changes_per_step
    assert policy.select(verified([keys[None]], [PREFIX])) is None
    positions = policy.select_step(0, 0, queries, keys, PREFIX)
    assert positions.tolist() == best_by_loops(queries, keys, score, granularity, 9)
    assert policy.num_entries(PREFIX) == 9
