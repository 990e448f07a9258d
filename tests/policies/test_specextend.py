"""SpecExtend: which chunks it reads, worked out by hand, and when it looks again; however the keys lie."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from policy_cases import dense, paged, reserved, verified
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Policy, Queries, Room, make_policy
from vegas_spec.policies.keys import KEYS_AT_ONCE, KeyView
from vegas_spec.policies.specextend import CHUNK_SIZE, REFRESH_INTERVAL
from vegas_spec.selection import NO_POSITION

ONE_CHUNK = VegasConfig(policy="specextend", kv_budget=0.01, kv_budget_min=40)  # 40 entries hold one whole chunk

LAYOUTS: dict[str, Callable[[Tensor], KeyView]] = {
    "dense": lambda keys: dense(keys, len(keys)),
    "blocks of 16": lambda keys: paged(keys, 16),
    "blocks of 64": lambda keys: paged(keys, 64),
}


def looking(*rows: float) -> Queries:
    """Rows of one head, one a request: 2 looks at the largest key, 1 at the many that are nearly as large."""
    return Queries(torch.tensor(rows).view(1, -1, 1), 1.0, None)


@pytest.fixture
def keys() -> Tensor:
    """One KV head in one dimension: position 5 holds 10, chunk 1 holds 8 everywhere, the rest 0.

    Row 1: ``e^10 = 22,026`` against ``32 e^8 = 95,391``; row 2: ``e^20 = 4.9e8`` against ``32 e^16 = 2.8e8``.
    """
    keys = torch.zeros(2, 1, 320, 1)
    keys[:, 0, 5] = 10.0
    keys[:, 0, 32:64] = 8.0
    return keys


@pytest.fixture(params=LAYOUTS)
def view(request: pytest.FixtureRequest, keys: Tensor) -> KeyView:
    """The keys as a cache keeps them."""
    return LAYOUTS[request.param](keys)


def specextend(keys: Tensor, config: VegasConfig = ONE_CHUNK) -> Policy:
    return reserved(config, [keys])


def chunk(number: int) -> list[int]:
    return list(range(CHUNK_SIZE * number, CHUNK_SIZE * (number + 1)))


def read(positions: Tensor, request: int = 0) -> list[int]:
    """The positions of a request, without what fills the row."""
    row = positions[0, request, 0]
    found = row[row != NO_POSITION].tolist()
    assert row.tolist() == [*found, *[NO_POSITION] * (len(row) - len(found))]
    return found


@pytest.mark.parametrize(("looks", "best"), [(2, 0), (1, 1)])
def test_the_last_accepted_row_ranks_whole_chunks_for_all_layers(keys: Tensor, view: KeyView, looks: int, best: int):
    policy = specextend(keys)
    first_layer = dense(torch.full_like(keys, torch.nan), 1)  # the last layer alone is looked at
    positions = policy.select(verified([first_layer, view], policy, [103], queries=looking(looks)))
    assert read(positions) == [*chunk(best), *range(96, 103)]
    assert positions.shape == (1, 1, 1, policy.most_entries(40))


@pytest.mark.parametrize(("accepted", "best"), [(1, 0), (2, 1)])
def test_a_row_sees_the_drafts_that_were_accepted_before_it(keys: Tensor, accepted: int, best: int):
    """Position 104 takes nearly all of the sharper head's weight, from the row that sees it: with two accepted drafts.

    Without it the heads give chunk 0 0.97 + 0.18 and chunk 1 0.03 + 0.80; with it 0.05 + 0.12 and 0.00 + 0.54.
    """
    keys[0, 0, 104] = 11.0
    policy, rows = specextend(keys), Queries(torch.tensor([[[3.0]], [[1.0]]]), 1.0, None)
    seen = verified([dense(keys, 1)], policy, [103], queries=rows, num_accepted=[accepted])
    assert read(policy.select(seen)) == [*chunk(best), *range(96, 103)]


def test_heads_are_averaged_and_sinks_take_weight(keys: Tensor, view: KeyView):
    # Head 0 puts 0.63 on chunk 0; head 1 looks at chunk 1 alone, but nearly all of its weight goes to its sink.
    rows = Queries(torch.tensor([[[2.0]], [[1.0]]]), 1.0, torch.tensor([-math.inf, 20.0]))
    policy = specextend(keys)
    assert read(policy.select(verified([view], policy, [96], queries=rows))) == chunk(0)
    policy = specextend(keys)
    assert read(policy.select(verified([view], policy, [96], queries=Queries(rows.query, 1.0, None)))) == chunk(1)


def test_it_looks_again_at_every_eighth_iteration(keys: Tensor, view: KeyView):
    policy = specextend(keys)
    length, retrieved_at = 100, 100
    for iteration in range(3 * REFRESH_INTERVAL):
        # At each iteration another row, so another chunk, would be chosen.
        sharp = (iteration // REFRESH_INTERVAL + iteration % REFRESH_INTERVAL) % 2 == 0
        if iteration % REFRESH_INTERVAL == 0:
            best, retrieved_at = (0 if sharp else 1), length
        found = read(policy.select(verified([view], policy, [length], queries=looking(2 if sharp else 1))))
        assert found == [*chunk(best), *range(retrieved_at // 32 * 32, length)]
        assert len(found) <= policy.most_entries(policy.config.budget(length))
        length += 7


def test_requests_have_schedules_of_their_own_and_leave_nothing_behind(keys: Tensor):
    policy = specextend(keys)
    one = [dense(keys[1:], 1)]
    for _ in range(3):
        policy.select(verified(one, policy, [96], slots=[1], queries=looking(1)))
    both = policy.select(verified([dense(keys.flip(0), 2)], policy, [96, 100], slots=[1, 0], queries=looking(2, 2)))
    assert [read(both, 0), read(both, 1)] == [chunk(1), [*chunk(0), *range(96, 100)]]
    policy.release(1)
    assert read(policy.select(verified(one, policy, [96], slots=[1], queries=looking(2)))) == chunk(0)


def test_a_row_whose_draft_is_thrown_away_is_not_remembered(keys: Tensor):
    policy = specextend(keys)
    view = [dense(keys, 2)]
    policy.select(verified(view, policy, [96, 96], slots=[-1, 1], queries=looking(1, 1)))
    found = policy.select(verified(view, policy, [96, 96], slots=[0, 1], queries=looking(2, 2)))
    assert [read(found, 0), read(found, 1)] == [chunk(0), chunk(1)]


@pytest.mark.parametrize("prefix_len", [1, 31, 32, 100])
def test_a_large_budget_reads_the_whole_prefix(keys: Tensor, view: KeyView, prefix_len: int):
    policy = specextend(keys, VegasConfig(policy="specextend"))
    positions = policy.select(verified([view], policy, [prefix_len], queries=looking(1)))
    assert read(positions) == list(range(prefix_len))


def test_without_queries_it_is_a_fault_of_the_caller(keys: Tensor):
    policy = specextend(keys)
    with pytest.raises(TypeError, match="kept none"):
        policy.select(verified([dense(keys, 1)], policy, [50]))


def test_a_long_context_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch, keys: Tensor):
    assert KEYS_AT_ONCE % 1024 == 0
    monkeypatch.setattr("vegas_spec.policies.keys.KEYS_AT_ONCE", 64)
    view = paged(keys, 16)
    pieces = list(view.read(1, 300))
    assert [piece.shape[1] for piece in pieces] == [64, 64, 64, 64, 44]
    assert torch.equal(torch.cat(pieces, dim=1), keys[1, :, :300])
    policy = specextend(keys)
    assert read(policy.select(verified([view], policy, [300], queries=looking(1)))) == [*chunk(1), *range(288, 300)]


def test_ranks_sum_their_scores():
    """Two ranks with half of the heads each choose what one with all heads chooses, and not what each would alone."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(1, 2, 320, 32, generator=generator)
    query = torch.randn(4, 1, 32, generator=generator)
    config = VegasConfig(policy="specextend", kv_budget=0.3, kv_budget_min=40)

    def chosen(heads: slice, kv_heads: slice, over_ranks: Callable[[Tensor], Tensor]) -> list[int]:
        policy = make_policy(config)
        layers = [(kv_heads.stop - kv_heads.start, 32)]
        policy.reserve(Room(layers, 20, 1, config.budget(320), torch.float32, torch.device("cpu"), over_ranks))
        view = dense(keys[:, kv_heads], 1)
        return read(policy.select(verified([view], policy, [300], queries=Queries(query[heads], 0.5, None))))

    given: list[Tensor] = []

    def give(scores: Tensor) -> Tensor:
        given.append(scores)
        return scores

    halves = [(slice(0, 2), slice(0, 1)), (slice(2, 4), slice(1, 2))]
    for half in halves:
        chosen(*half, give)
    whole = chosen(slice(0, 4), slice(0, 2), lambda scores: scores)
    assert [chosen(*half, lambda scores: given[0] + given[1]) for half in halves] == [whole, whole]
    assert any(chosen(*half, lambda scores: scores) != whole for half in halves)
