"""MagicDec-Quest: every draft step ranks pages of keys by a bound on their products with its own query."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Drafting, Policy, Verified
from vegas_spec.selection import NO_POSITION, select_positions

PAGE_SIZE = 16


class QuestPolicy(Policy):
    """The pages of 16 keys that might hold the largest logits, per layer, KV head and draft step.

    A page with element-wise bounds ``min`` and ``max`` of its keys is ranked by

    ``s[g, page] = sum_{h in g} sum_d max(q[h, d] * max[d], q[h, d] * min[d])``

    an upper bound of its keys' logits, summed over the query heads ``h`` of KV head ``g``. The best ``budget // 16``
    finished pages are read, and the unfinished one at the prefix's end. Quest (arXiv 2406.10774), as MagicDec drafts
    with it (arXiv 2408.11049).

    The bounds take an eighth of the memory of half-precision keys and values; a page gets its own once, when verified
    tokens have filled it.
    """

    name = "quest"
    summary = "the pages that each step ranks best"
    per_step = True

    def __init__(self, config: VegasConfig) -> None:
        super().__init__(config)
        self.bounds: list[Tensor] = []
        """Per layer, each page's element-wise largest keys, then the smallest; shape ``[slots, num_kv_heads, pages,
        2 * head_dim]``."""
        self.num_pages: dict[int, int] = {}
        """Finished pages by slot: those that have bounds."""

    def num_entries(self, prefix_len: int) -> int:
        """Whole pages up to the budget, and the unfinished one."""
        return self.config.budget(prefix_len) // PAGE_SIZE * PAGE_SIZE + prefix_len % PAGE_SIZE

    def select(self, verified: Verified) -> None:
        """Bring the bounds of every request up to date with its prefix."""
        if not self.bounds:
            self.bounds = [_allocate(keys) for keys in verified.keys]
        for slot, prefix_len in zip(verified.slots, verified.prefix_lens, strict=True):
            known, finished = self.num_pages.get(slot, 0), prefix_len // PAGE_SIZE
            self.num_pages[slot] = finished
            for keys, bounds in zip(verified.keys, self.bounds, strict=True) if finished > known else ():
                kv_heads, _, head_dim = keys[slot].shape
                new = keys[slot, :, known * PAGE_SIZE : finished * PAGE_SIZE]
                new = new.view(kv_heads, finished - known, PAGE_SIZE, head_dim)
                largest, smallest = bounds[slot, :, known:finished].chunk(2, dim=-1)
                largest.copy_(new.amax(2))
                smallest.copy_(new.amin(2))

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        """See `Policy.select_step`."""
        device = drafting.keys.device
        finished = [self.num_pages[slot] for slot in drafting.slots]
        wanted = [self.config.budget(prefix_len) // PAGE_SIZE for prefix_len in drafting.prefix_lens]
        entries = [self.num_entries(prefix_len) for prefix_len in drafting.prefix_lens]
        slots, num_pages, num_best, num_entries = torch.tensor(
            [drafting.slots, finished, wanted, entries], device=device
        )
        # The few queries are brought to their slots, not the bounds to their queries.
        query = drafting.queries.query
        by_slot = query.new_zeros(query.shape[0], len(drafting.keys), query.shape[2]).index_copy_(1, slots, query)
        scores = page_scores(by_slot, self.bounds[layer][:, :, : max(finished)])[slots]
        best = select_positions(scores, num_pages, num_best)
        within = torch.arange(PAGE_SIZE, device=device)
        pages = (best[..., None] * PAGE_SIZE + within).flatten(2)
        # After a request's best pages comes its unfinished one, whose place the other requests' widths do not change.
        column = torch.arange(max(entries), device=device)
        pages = F.pad(pages, (0, len(column) - pages.shape[-1]))
        in_pages = (num_best * PAGE_SIZE)[:, None, None]
        unfinished = (num_pages * PAGE_SIZE)[:, None, None] + column - in_pages
        positions = torch.where(column < in_pages, pages, unfinished)
        return positions.masked_fill(column >= num_entries[:, None, None], NO_POSITION)

    def release(self, slot: int) -> None:
        """See `Policy.release`."""
        self.num_pages.pop(slot, None)


def page_scores(query: Tensor, bounds: Tensor) -> Tensor:
    """Rank pages; see `QuestPolicy`.

    ``max(q * max, q * min)`` is ``q * max`` where ``q`` is positive and ``q * min`` elsewhere, so the sum over a
    group's heads is one product of their summed positive and negative parts with the bounds.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, batch, head_dim]``.
    bounds : Tensor
        Float32, shape ``[batch, num_kv_heads, pages, 2 * head_dim]``, largest before smallest.

    Returns
    -------
    Tensor
        Float32, shape ``[batch, num_kv_heads, pages]``.

    """
    batch, kv_heads = bounds.shape[:2]
    heads = query.float().transpose(0, 1).reshape(batch, kv_heads, -1, query.shape[-1])
    signed = torch.cat([heads.clamp(min=0).sum(2), heads.clamp(max=0).sum(2)], dim=-1)
    return torch.matmul(bounds, signed[..., None])[..., 0]


def _allocate(keys: Tensor) -> Tensor:
    slots, kv_heads, length, head_dim = keys.shape
    # In float32, since products of half precision would tie too often, and to convert at each step costs more than the
    # products.
    return keys.new_empty(slots, kv_heads, length // PAGE_SIZE, 2 * head_dim, dtype=torch.float32)
