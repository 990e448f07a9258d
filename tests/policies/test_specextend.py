"""SpecExtend: which chunks it reads, worked out by hand, and when it looks again."""

from __future__ import annotations

import math

import pytest
import torch
from policy_cases import verified
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Queries
from vegas_spec.policies.specextend import CHUNK_SIZE, REFRESH_INTERVAL, SpecExtendPolicy, best_chunks
from vegas_spec.selection import NO_POSITION

ONE_CHUNK = VegasConfig(kv_budget=0.01, kv_budget_min=40)  # 40 entries hold one whole chunk


def sharp_or_broad(*rows: float) -> Queries:
    """Rows of one head: 2 looks at the largest key, 1 at the many that are nearly as large."""
    return Queries(torch.tensor(rows).view(1, -1, 1), 1.0, None)


@pytest.fixture
def keys() -> Tensor:
    """One KV head in one dimension: position 5 holds 10, chunk 1 holds 8 everywhere, the rest 0.

    Row 1: ``e^10 = 22,026`` against ``32 e^8 = 95,391``; row 2: ``e^20 = 4.9e8`` against ``32 e^16 = 2.8e8``.
    """
    keys = torch.zeros(2, 1, 300, 1)
    keys[:, 0, 5] = 10.0
    keys[:, 0, 32:64] = 8.0
    return keys


def chunk(number: int) -> list[int]:
    return list(range(CHUNK_SIZE * number, CHUNK_SIZE * (number + 1)))


@pytest.mark.parametrize(("accepted", "best"), [(0, 0), (1, 1), (2, 0)])
def test_the_last_accepted_row_ranks_whole_chunks_for_all_layers(keys: Tensor, accepted: int, best: int):
    policy = SpecExtendPolicy(ONE_CHUNK)
    first_layer = torch.full_like(keys, torch.nan)  # the last layer alone is looked at
    rows = sharp_or_broad(2, 1, 2)
    positions = policy.select(verified([first_layer, keys], [103], num_accepted=[accepted], queries=[rows]))
    assert positions.tolist() == [[[[*chunk(best), *range(96, 103)]]]]
    assert positions.shape[-1] <= policy.num_entries(103)


def test_heads_are_averaged_and_sinks_take_weight(keys: Tensor):
    # Head 0 puts 0.63 on chunk 0; head 1 looks at chunk 1 alone, but nearly all of its weight goes to its sink.
    rows = Queries(torch.tensor([[[2.0]], [[1.0]]]), 1.0, torch.tensor([-math.inf, 20.0]))
    positions = SpecExtendPolicy(ONE_CHUNK).select(verified([keys], [96], queries=[rows]))
    assert positions.tolist() == [[[chunk(0)]]]
    rows = Queries(rows.query, 1.0, None)
    positions = SpecExtendPolicy(ONE_CHUNK).select(verified([keys], [96], queries=[rows]))
    assert positions.tolist() == [[[chunk(1)]]]


def test_it_looks_again_at_every_eighth_iteration(keys: Tensor):
    policy = SpecExtendPolicy(ONE_CHUNK)
    length, retrieved_at = 100, 100
    for iteration in range(3 * REFRESH_INTERVAL):
        # At each iteration another row, so another chunk, would be chosen.
        sharp = (iteration // REFRESH_INTERVAL + iteration % REFRESH_INTERVAL) % 2 == 0
        rows = sharp_or_broad(2 if sharp else 1)
        if iteration % REFRESH_INTERVAL == 0:
            best, retrieved_at = (0 if sharp else 1), length
        positions = policy.select(verified([keys], [length], queries=[rows]))[0, 0, 0].tolist()
        assert positions == [*chunk(best), *range(retrieved_at // 32 * 32, length)]
        assert len(positions) <= policy.num_entries(length)
        length += 7


def test_requests_have_schedules_of_their_own_and_leave_nothing_behind(keys: Tensor):
    policy = SpecExtendPolicy(ONE_CHUNK)
    broad, sharp = sharp_or_broad(1), sharp_or_broad(2)
    for _ in range(3):
        policy.select(verified([keys], [96], slots=[1], queries=[broad]))
    both = policy.select(verified([keys], [96, 100], slots=[1, 0], queries=[sharp, sharp]))
    assert both[0, :, 0].tolist() == [[*chunk(1), *[NO_POSITION] * 4], [*chunk(0), *range(96, 100)]]
    policy.release(1)
    again = policy.select(verified([keys], [96], slots=[1], queries=[sharp]))
    assert again.tolist() == [[[chunk(0)]]]
    policy.release(0)
    policy.release(1)
    assert policy._retrievals == {}


@pytest.mark.parametrize("prefix_len", [1, 31, 32, 100])
def test_a_large_budget_reads_the_whole_prefix(keys: Tensor, prefix_len: int):
    positions = SpecExtendPolicy(VegasConfig()).select(verified([keys], [prefix_len], queries=[sharp_or_broad(1)]))
    assert positions.tolist() == [[[list(range(prefix_len))]]]


def test_without_queries_it_is_a_fault_of_the_caller(keys: Tensor):
    with pytest.raises(TypeError, match="kept none"):
        SpecExtendPolicy(VegasConfig()).select(verified([keys], [50]))


def test_of_equal_chunks_the_latest_and_nan_last():
    scores = torch.tensor([0.5, math.nan, 0.5, 0.25, 0.5, 9.0])
    assert best_chunks(scores, 5, 2).tolist() == [2, 4, 6, 6, 6, 6]
    assert best_chunks(scores, torch.tensor([5]), torch.tensor([4])).tolist() == [0, 2, 3, 4, 6, 6]
    assert best_chunks(scores, 5, 5).tolist() == [0, 1, 2, 3, 4, 6]
    assert best_chunks(scores[:0], 0, 0).tolist() == []
