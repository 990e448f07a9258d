"""Quest: which pages it reads, worked out by hand, and that its bounds stay those of the keys, however these lie."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import cast

import pytest
import torch
from policy_cases import dense, drafting, paged, places, reserved
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Policy, Queries
from vegas_spec.policies.keys import PAGE_SIZE, KeyView
from vegas_spec.policies.quest import QuestPolicy, page_scores
from vegas_spec.selection import NO_POSITION

LAYOUTS: dict[str, Callable[[Tensor], KeyView]] = {
    "dense": lambda keys: dense(keys, len(keys)),
    "blocks of 16": lambda keys: paged(keys, 16),
    "blocks of 32": lambda keys: paged(keys, 32),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Callable[[Tensor], KeyView]:
    """How the cache keeps its keys."""
    return LAYOUTS[request.param]


def quest(keys: Tensor, view: KeyView, prefix_lens: list[int], **options: float) -> Policy:
    """The policy, once it has seen the keys of these prefixes."""
    policy = reserved(VegasConfig(policy="quest", **options), [keys], view.num_pages)  # type: ignore[arg-type]
    for request, length in enumerate(prefix_lens):
        policy.observe(0, view, places(view, request, 0, length))
    return policy


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
def test_it_reads_the_best_pages_and_the_unfinished_one(
    keys: Tensor, layout: Callable[[Tensor], KeyView], queries: Queries, pages: list[int]
):
    view = layout(keys)
    policy = quest(keys, view, [83], kv_budget=0.01, kv_budget_min=40)  # 40 entries hold two whole pages
    positions = policy.select_step(0, drafting(view, policy, queries, [83], since=7))
    assert positions.tolist() == [[[*(16 * page + at for page in pages for at in range(16)), 80, 81, 82]]]
    # Columns that vLLM's graphs have for longer contexts hold nothing.
    wide = policy.select_step(0, drafting(view, policy, queries, [83], since=7, width=90))
    assert wide.tolist() == [[[*positions[0, 0].tolist(), *[NO_POSITION] * (90 - 35)]]]


def test_each_request_of_a_batch_reads_its_own_pages(keys: Tensor, layout: Callable[[Tensor], KeyView]):
    keys = torch.cat([keys, keys.flip(2), keys])
    view, prefix_lens = layout(keys), [83, 96, 9]
    policy = quest(keys, view, prefix_lens, kv_budget=0.4, kv_budget_min=16)
    queries = Queries(torch.tensor([[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3]), 1.0, None)
    positions = policy.select_step(0, drafting(view, policy, queries, prefix_lens))
    # Two pages of 83 entries, as above; two of 96, where what lay beyond the prefix above leads; none of nine entries.
    pages = [[*range(16), *range(48, 64), 80, 81, 82], [*range(16), *range(32, 48)], list(range(9))]
    assert positions[:, 0].tolist() == [[*row, *[NO_POSITION] * (35 - len(row))] for row in pages]
    budgets = [policy.config.budget(length) for length in prefix_lens]
    assert [policy.num_entries(*each) for each in zip(prefix_lens, budgets, strict=True)] == [35, 32, 9]
    assert all(policy.most_entries(budget) >= count for budget, count in zip(budgets, (35, 32, 9), strict=True))


@pytest.mark.parametrize("prefix_len", [1, 15, 16, 31, 32, 83])
def test_a_large_budget_reads_the_whole_prefix(keys: Tensor, layout: Callable[[Tensor], KeyView], prefix_len: int):
    view = layout(keys)
    policy = quest(keys, view, [prefix_len])
    positions = policy.select_step(0, drafting(view, policy, two_heads([1, 0], [0, 1]), [prefix_len]))
    assert positions.tolist() == [[list(range(prefix_len))]]


def test_page_scores_are_the_formula():
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(6, 4, generator=generator), torch.randn(2, 3 * PAGE_SIZE, 4, generator=generator)
    pages = keys.view(2, 3, PAGE_SIZE, 4)
    [scores] = page_scores(query[:, None], torch.cat([pages.amax(2), pages.amin(2)], dim=-1)[None])
    for kv_head, page in itertools.product(range(2), range(3)):
        expected = 0.0
        for head, dim in itertools.product(range(3 * kv_head, 3 * kv_head + 3), range(4)):
            column = keys[kv_head, page * PAGE_SIZE : (page + 1) * PAGE_SIZE, dim]
            expected += max(float(query[head, dim] * column.max()), float(query[head, dim] * column.min()))
        assert float(scores[kv_head, page]) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    logits = torch.einsum("ghd,gkd->ghk", query.view(2, 3, 4), keys).sum(1).view(2, 3, PAGE_SIZE)
    assert (scores + 1e-4 >= logits.amax(-1)).all()  # a bound of every key's


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_after_any_history_are_those_of_the_keys(layout: Callable[[Tensor], KeyView], dtype: torch.dtype):
    """Drafts are seen, rejected, and written over; two requests, of which one ends early; padding has no place."""
    chance, generator = random.Random(0), torch.Generator().manual_seed(0)
    keys = torch.randn(3, 2, 400, 4, generator=generator).to(dtype)
    view = layout(keys)
    policy = cast(QuestPolicy, reserved(VegasConfig(policy="quest"), [keys], view.num_pages))
    lengths = {0: 0, 2: 0}
    for iteration in range(120):
        for slot, length in lengths.items():
            # What drafting wrote past the committed tokens, and what verification then sees there.
            verified = min(length + (150 if length == 0 else 7), 400)
            keys[slot, :, length:verified] = torch.randn(2, verified - length, 4, generator=generator).to(dtype)
            if (changed := layout(keys)) is not view:
                view.__dict__.update(changed.__dict__)
            seen = torch.cat([places(view, slot, length, verified), torch.tensor([-1, -1])])
            policy.observe(0, view, seen)
            lengths[slot] = min(length + 1 + chance.randrange(verified - length), 380)
        if iteration == 25:
            policy.release(2)
            lengths[2] = 0
        for slot, length in lengths.items():
            finished = length // PAGE_SIZE
            pages = keys[slot, :, : finished * PAGE_SIZE].reshape(2, finished, PAGE_SIZE, 4)
            expected = torch.cat([pages.amax(2), pages.amin(2)], dim=-1).float().transpose(0, 1)
            assert torch.equal(policy.bounds[0][view.page_table[slot, :finished]], expected)
