"""What the policies' tests share: verifications and draft steps over keys that lie densely, or in pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Drafting, Policy, Queries, Room, Verified, make_policy
from vegas_spec.policies.keys import PAGE_SIZE, DenseKeys, KeyView, PagedKeys


def reserved(config: VegasConfig, keys: Sequence[Tensor], num_pages: int | None = None) -> Policy:
    """A policy with room for these keys, ``[slots, num_kv_heads, length, head_dim]`` per layer."""
    policy = make_policy(config)
    slots, _, length, _ = keys[0].shape
    policy.reserve(
        Room(
            layers=[(layer.shape[1], layer.shape[3]) for layer in keys],
            num_pages=slots * length // PAGE_SIZE if num_pages is None else num_pages,
            max_requests=slots,
            most_entries=config.budget(length),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
    )
    return policy


def dense(keys: Tensor, count: int) -> DenseKeys:
    """Keys of requests in the slots 0, 1, ..."""
    return DenseKeys(keys, list(range(count)))


def paged(keys: Tensor, block_size: int, seed: int = 0) -> PagedKeys:
    """The same keys in blocks of any order, and not a number where there are none."""
    slots, heads, length, dim = keys.shape
    each = -(-length // block_size)
    table = torch.randperm(slots * each + 1, generator=torch.Generator().manual_seed(seed))[: slots * each]
    cache = torch.full((slots * each + 1, block_size, heads, dim), torch.nan, dtype=keys.dtype)
    filled = torch.full((slots, heads, each * block_size, dim), torch.nan, dtype=keys.dtype)
    filled[:, :, :length] = keys
    cache[table] = filled.view(slots, heads, each, block_size, dim).permute(0, 2, 3, 1, 4).flatten(0, 1)
    return PagedKeys(cache, table.view(slots, each).int(), keys.dtype)


def places(view: KeyView, request: int, first: int, last: int) -> Tensor:
    """Where the keys ``[first, last)`` of a request stand."""
    position = torch.arange(first, last)
    return view.page_table[request, position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


def verified(
    keys: Sequence[KeyView],
    policy: Policy,
    prefix_lens: Sequence[int],
    *,
    slots: Sequence[int] | None = None,
    scores: Tensor | None = None,
    queries: Queries | None = None,
    num_accepted: Sequence[int] | None = None,
    width: int | None = None,
) -> Verified:
    """A verification of requests in the slots 0, 1, ..., of whose drafts none was accepted."""
    slots = list(range(len(prefix_lens))) if slots is None else slots
    accepted = [0] * len(prefix_lens) if num_accepted is None else num_accepted
    seen = [length + more for length, more in zip(prefix_lens, accepted, strict=True)]
    budgets = [policy.config.budget(length) for length in prefix_lens]
    return Verified(
        slots=slots,
        slot_index=torch.tensor(slots),
        prefix_lens=torch.tensor(prefix_lens),
        budgets=torch.tensor(budgets),
        width=max(map(policy.most_entries, budgets)) if width is None else width,
        keys=keys,
        scores=scores,
        queries=queries,
        seen=torch.tensor(seen),
        most_seen=seen,
    )


def drafting(
    keys: KeyView,
    policy: Policy,
    queries: Queries,
    prefix_lens: Sequence[int],
    since: int = 1,
    width: int | None = None,
) -> Drafting:
    """A draft step of requests with so many keys since the prefix."""
    budgets = [policy.config.budget(length) for length in prefix_lens]
    return Drafting(
        prefix_lens=torch.tensor(prefix_lens),
        budgets=torch.tensor(budgets),
        seq_lens=torch.tensor([length + since for length in prefix_lens]),
        width=max(map(policy.num_entries, prefix_lens, budgets)) if width is None else width,
        queries=queries,
        keys=keys,
    )
