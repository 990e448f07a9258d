"""What the policies' tests share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vegas_spec.policies import Drafting, Queries, Verified


def verified(
    keys: Sequence[Tensor],
    prefix_lens: Sequence[int],
    *,
    slots: Sequence[int] | None = None,
    num_accepted: Sequence[int] | None = None,
    scores: Tensor | None = None,
    queries: Sequence[Queries] | None = None,
) -> Verified:
    """A verification of requests in the slots 0, 1, ..., of whose drafts none was accepted."""
    return Verified(
        slots=list(range(len(prefix_lens))) if slots is None else slots,
        prefix_lens=prefix_lens,
        num_accepted=[0] * len(prefix_lens) if num_accepted is None else num_accepted,
        keys=keys,
        scores=scores,
        queries=queries,
    )


def drafting(keys: Tensor, queries: Queries, prefix_lens: Sequence[int], since: int = 1) -> Drafting:
    """A draft step of requests in the slots 0, 1, ... with so many keys since the prefix."""
    lengths = [prefix_len + since for prefix_len in prefix_lens]
    return Drafting(list(range(len(prefix_lens))), prefix_lens, lengths, queries, keys)
