"""The oracle reads what the step's own query wants most, against plain loops."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from policy_cases import dense, drafting, reserved
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Queries
from vegas_spec.selection import NO_POSITION

HEADS, KV_HEADS, DIM = 4, 2, 8
PREFIX_LENS, SINCE = [43, 17], 7


def best_by_loops(queries: Queries, place: int, keys: Tensor, score: str, granularity: str, count: int) -> list[Any]:
    """Best positions of one request's prefix, by group; ``keys`` are those that its row sees."""
    groups, prefix_len = KV_HEADS if granularity == "kv_head" else 1, keys.shape[1] - SINCE
    scores = [[0.0] * prefix_len for _ in range(groups)]
    for head in range(HEADS):
        query = queries.query[head, place].double()
        logits = [float(query @ key) * queries.scale for key in keys[head // 2].double()]
        sink = 0.0 if queries.sinks is None else exp(float(queries.sinks[head]))
        total = sum(exp(logit) for logit in logits) + sink
        for at in range(prefix_len):
            scores[head // (HEADS // groups)][at] += exp(logits[at]) / total if score == "weight" else logits[at]
    return [sorted(sorted(range(prefix_len), key=lambda at, row=row: row[at])[-count:]) for row in scores]  # type: ignore[misc]


@pytest.mark.parametrize("sinks", [None, torch.tensor([3.0, -1.0, 0.0, 5.0])], ids=["", "sinks"])
@pytest.mark.parametrize("granularity", ["kv_head", "layer"])
@pytest.mark.parametrize("score", ["weight", "logit"])
def test_it_reads_the_best_of_the_prefix(score: str, granularity: str, sinks: Tensor | None):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(2, KV_HEADS, 64, DIM, generator=generator)
    for slot, prefix_len in enumerate(PREFIX_LENS):
        keys[slot, :, prefix_len:] *= 3  # what came since the prefix takes weight, and is never chosen
        keys[slot, :, prefix_len + SINCE :] = torch.nan
    queries = Queries(torch.randn(HEADS, 2, DIM, generator=generator), 0.7, sinks)
    options = {"score": score, "granularity": granularity}
    config = VegasConfig(policy="oracle", kv_budget=0.2, kv_budget_min=1, **options)  # type: ignore[arg-type]
    policy = reserved(config, [keys])
    positions = policy.select_step(0, drafting(dense(keys, 2), policy, queries, PREFIX_LENS, SINCE))
    for place, (prefix_len, count) in enumerate(zip(PREFIX_LENS, (9, 4), strict=True)):
        best = best_by_loops(queries, place, keys[place, :, : prefix_len + SINCE], score, granularity, count)
        assert positions[place].tolist() == [[*row, *[NO_POSITION] * (9 - count)] for row in best]
