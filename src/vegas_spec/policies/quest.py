"""MagicDec-Quest: every draft step ranks pages of keys by a bound on their products with its own query."""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.config import Count, VegasConfig
from vegas_spec.policies.base import Drafting, Policy, Room, Verified
from vegas_spec.policies.keys import PAGE_SIZE, KeyView
from vegas_spec.selection import NO_POSITION, rank_positions

CHUNK = 1024
"""Tokens whose pages are bounded at once, which bounds the memory it takes. Chosen by hand."""


class QuestPolicy(Policy):
    """The pages of 16 keys that might hold the largest logits, per layer, KV head and draft step.

    A page with element-wise bounds ``min`` and ``max`` of its keys is ranked by

    ``s[g, page] = sum_{h in g} sum_d max(q[h, d] * max[d], q[h, d] * min[d])``

    an upper bound of its keys' logits, summed over the query heads ``h`` of KV head ``g``. The best ``budget // 16``
    finished pages are read, and the unfinished one at the prefix's end. Quest (arXiv 2406.10774), as MagicDec drafts
    with it (arXiv 2408.11049).

    Bounds stand by the page's place in the cache, so what requests share there they share too, and nothing moves when
    requests come and go. They take an eighth (float32) or a sixteenth (half precision) of the memory of half-precision
    keys and values.
    """

    name = "quest"
    summary = "the pages that each step ranks best"
    per_step = True

    def __init__(self, config: VegasConfig) -> None:
        super().__init__(config)
        self.bounds: list[Tensor] = []
        """Per layer, each page's element-wise largest keys, then the smallest; shape ``[pages + 1, num_kv_heads,
        2 * head_dim]``. The last one is of no page: where a recorded graph writes what is to be forgotten."""

    def most_entries(self, budget: int) -> int:
        """Whole pages up to the budget, and an unfinished one."""
        return budget + PAGE_SIZE - 1

    def num_entries(self, prefix_len: Count, budget: Count) -> Count:
        """Whole pages up to the budget, and the unfinished one."""
        return budget // PAGE_SIZE * PAGE_SIZE + prefix_len % PAGE_SIZE  # type: ignore[operator, return-value]

    def reserve(self, room: Room) -> None:
        """See `Policy.reserve`."""
        if not self.bounds or room.num_pages >= len(self.bounds[0]):
            shapes = [(room.num_pages + 1, heads, 2 * dim) for heads, dim in room.layers]
            self.bounds = [torch.zeros(shape, dtype=room.dtype, device=room.device) for shape in shapes]

    @property
    def num_bytes(self) -> int:
        """See `Policy.num_bytes`."""
        return sum(bounds.nbytes for bounds in self.bounds)

    def observe(self, layer: int, keys: KeyView, places: Tensor) -> None:
        """Bound the pages whose last key is among these, anew if they were.

        A page that rejected drafts have filled is bounded again when the tokens that come in their place are verified.
        """
        bounds = self.bounds[layer]
        if places.device.type == "cpu":  # where a shape may depend on data, most of the work is left out
            places = places[places % PAGE_SIZE == PAGE_SIZE - 1]
        for some in torch.split(places, CHUNK):
            page = some.clamp(min=0) // PAGE_SIZE
            of_page = keys.pages(page)
            ends = (some >= 0) & (some % PAGE_SIZE == PAGE_SIZE - 1)
            into = torch.where(ends, page, len(bounds) - 1)
            bounds[into] = torch.cat([of_page.amax(-3), of_page.amin(-3)], dim=-1).to(bounds.dtype)

    def select(self, verified: Verified) -> None:
        """Nothing is chosen before a step's query is known."""
        return

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        """See `Policy.select_step`."""
        lengths, budgets, query = drafting.prefix_lens, drafting.budgets, drafting.queries.query
        finished, num_best = lengths // PAGE_SIZE, budgets // PAGE_SIZE
        table = drafting.keys.page_table
        scores = page_scores(query, self.bounds[layer][table].transpose(1, 2))
        best = rank_positions(scores, finished, num_best, max(drafting.width // PAGE_SIZE, 1))
        # After a request's best pages comes its unfinished one, wherever the list's other columns end.
        column = torch.arange(drafting.width, device=lengths.device)
        place = (column // PAGE_SIZE).clamp(max=best.shape[-1] - 1)
        in_pages = (num_best.minimum(finished) * PAGE_SIZE)[:, None, None]
        pages = best[..., place] * PAGE_SIZE + column % PAGE_SIZE
        positions = torch.where(column < in_pages, pages, (finished * PAGE_SIZE)[:, None, None] + column - in_pages)
        return positions.masked_fill(column >= in_pages + (lengths % PAGE_SIZE)[:, None, None], NO_POSITION)


def page_scores(query: Tensor, bounds: Tensor) -> Tensor:
    """Rank pages; see `QuestPolicy`.

    ``max(q * max, q * min)`` is ``q * max`` where ``q`` is positive and ``q * min`` elsewhere, so the sum over a
    group's heads is one product of their summed positive and negative parts with the bounds.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, batch, head_dim]``.
    bounds : Tensor
        Shape ``[batch, num_kv_heads, pages, 2 * head_dim]``, largest before smallest.

    Returns
    -------
    Tensor
        Float32 (products of half precision would tie too often), shape ``[batch, num_kv_heads, pages]``.

    """
    batch, kv_heads = bounds.shape[:2]
    heads = query.float().transpose(0, 1).reshape(batch, kv_heads, -1, query.shape[-1])
    signed = torch.cat([heads.clamp(min=0).sum(2), heads.clamp(max=0).sum(2)], dim=-1)
    return torch.matmul(bounds.float(), signed[..., None])[..., 0]
