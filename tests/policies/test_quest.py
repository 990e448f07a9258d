"""Quest: which pages it reads, worked out by hand, and that its bounds stay those of the keys."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from policy_cases import drafting, verified
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Queries
from vegas_spec.policies.quest import PAGE_SIZE, QuestPolicy, page_scores
from vegas_spec.selection import NO_POSITION


def two_heads(one: list[float], other: list[float]) -> Queries:
    """One row of a request whose two query heads share a KV head."""
    return Queries(torch.tensor([[one], [other]]), 1.0, None)


@pytest.fixture
def keys() -> Tensor:
    """Six pages of one KV head in two dimensions, the last one unfinished: 83 keys."""
    keys = torch.zeros(1, 1, 96, 2)
    keys[0, 0, 7] = torch.tensor([5.0, 0.0])  # page 0
    keys[0, 0, 16] = torch.tensor([0.0, -9.0])  # page 1
    keys[0, 0, 47] = torch.tensor([4.0, 0.0])  # page 2
    keys[0, 0, 48] = torch.tensor([3.0, 0.0])  # page 3: its bounds promise both
    keys[0, 0, 49] = torch.tensor([0.0, 3.0])
    keys[0, 0, 70] = torch.tensor([-8.0, -8.0])  # page 4
    keys[0, 0, 80:] = 100.0  # page 5, unfinished, and what lies beyond the prefix
    return keys


@pytest.mark.parametrize(
    ("queries", "pages"),
    [
        (two_heads([1, 0], [0, 1]), [0, 3]),  # bounds 5, 0, 4, 3 + 3, 0
        (two_heads([-1, 0], [0, -1]), [1, 4]),  # bounds 0, 9, 0, 0, 8 + 8
        (two_heads([1, 0], [0, -1]), [1, 4]),  # bounds 5, 9, 4, 3, 8
        (two_heads([0, 0], [0, 0]), [3, 4]),  # ties go to the later ones
    ],
)
def test_it_reads_the_best_pages_and_the_unfinished_one(keys: Tensor, queries: Queries, pages: list[int]):
    policy = QuestPolicy(VegasConfig(kv_budget=0.01, kv_budget_min=40))  # 40 entries hold two whole pages
    assert policy.per_step
    policy.select(verified([keys], [83]))
    positions = policy.select_step(0, drafting(keys, queries, [83], since=7))
    assert positions.tolist() == [[[*(16 * page + at for page in pages for at in range(16)), 80, 81, 82]]]
    assert policy.num_entries(83) == positions.shape[2]


def test_each_request_of_a_batch_reads_its_own_pages(keys: Tensor):
    keys = torch.cat([keys, keys.flip(2), keys])
    policy = QuestPolicy(VegasConfig(kv_budget=0.4, kv_budget_min=16))
    prefix_lens = [83, 96, 9]
    policy.select(verified([keys], prefix_lens))
    queries = Queries(torch.tensor([[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3]), 1.0, None)
    positions = policy.select_step(0, drafting(keys, queries, prefix_lens))
    # Two pages of 83 entries, as above; two of 96, where what lay beyond the prefix above leads; none of nine entries.
    pages = [[*range(16), *range(48, 64), 80, 81, 82], [*range(16), *range(32, 48)], list(range(9))]
    assert positions[:, 0].tolist() == [[*row, *[NO_POSITION] * (35 - len(row))] for row in pages]
    assert [policy.num_entries(prefix_len) for prefix_len in prefix_lens] == [35, 32, 9]


@pytest.mark.parametrize("prefix_len", [1, 15, 16, 31, 32, 83])
def test_a_large_budget_reads_the_whole_prefix(keys: Tensor, prefix_len: int):
    policy = QuestPolicy(VegasConfig())
    policy.select(verified([keys], [prefix_len]))
    positions = policy.select_step(0, drafting(keys, two_heads([1, 0], [0, 1]), [prefix_len]))
    assert positions.tolist() == [[list(range(prefix_len))]]
    assert policy.num_entries(prefix_len) == prefix_len


def test_page_scores_are_the_formula():
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(6, 4, generator=generator), torch.randn(2, 3 * PAGE_SIZE, 4, generator=generator)
    paged = keys.view(2, 3, PAGE_SIZE, 4)
    [scores] = page_scores(query[:, None], torch.cat([paged.amax(2), paged.amin(2)], dim=-1)[None])
    for kv_head, page in itertools.product(range(2), range(3)):
        expected = 0.0
        for head, dim in itertools.product(range(3 * kv_head, 3 * kv_head + 3), range(4)):
            column = keys[kv_head, page * PAGE_SIZE : (page + 1) * PAGE_SIZE, dim]
            expected += max(float(query[head, dim] * column.max()), float(query[head, dim] * column.min()))
        assert float(scores[kv_head, page]) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    logits = torch.einsum("ghd,gkd->ghk", query.view(2, 3, 4), keys).sum(1).view(2, 3, PAGE_SIZE)
    assert (scores + 1e-4 >= logits.amax(-1)).all()  # a bound of every key's


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_after_any_history_are_those_of_the_keys(dtype: torch.dtype):
    """Drafts write past the prefix, are rejected, and are written over; two requests, of which one ends early."""
    chance, generator = random.Random(0), torch.Generator().manual_seed(0)
    layers = [torch.randn(3, 2, 400, 4, generator=generator).to(dtype) for _ in range(2)]
    policy = QuestPolicy(VegasConfig())
    lengths = {0: 1, 2: 150}
    for iteration in range(120):
        for slot, length in lengths.items():
            for keys in layers:  # the draft's approximate keys, then the verification's exact ones
                keys[slot, :, length : length + 14] = torch.randn(2, 14, 4, generator=generator).to(dtype)
        if iteration == 25:
            policy.release(2)
            lengths[2] = 3
            for keys in layers:
                keys[2].normal_(generator=generator)
        policy.select(verified(layers, list(lengths.values()), slots=list(lengths)))
        for (slot, length), (at, keys) in itertools.product(lengths.items(), enumerate(layers)):
            finished = length // PAGE_SIZE
            pages = keys[slot, :, : finished * PAGE_SIZE].reshape(2, finished, PAGE_SIZE, 4)
            bounds = policy.bounds[at][slot, :, :finished]
            assert torch.equal(bounds, torch.cat([pages.amax(2), pages.amin(2)], dim=-1).float())
            assert policy.num_pages[slot] == finished
        lengths = {slot: min(length + 1 + chance.randrange(7), 380) for slot, length in lengths.items()}
    policy.release(0)
    policy.release(2)
    assert policy.num_pages == {}
