"""MagicDec-Quest: every draft step ranks pages of keys by a bound on their products with its own query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies.base import Policy, Queries, Verified
from vegas_spec.selection import select_positions

PAGE_SIZE = 16


@dataclass
class _Pages:
    """What is known of one request's finished pages."""

    bounds: list[Tensor]
    """Per layer ``[num_kv_heads, pages, 2 * head_dim]``: each page's element-wise largest keys, then the smallest."""
    count: int = 0


class QuestPolicy(Policy):
    """The pages of 16 keys that might hold the largest logits, per layer, KV head and draft step.

    A page with element-wise bounds ``min`` and ``max`` of its keys is ranked by

    ``s[g, page] = sum_{h in g} sum_d max(q[h, d] * max[d], q[h, d] * min[d])``

    an upper bound of its keys' logits, summed over the query heads ``h`` of KV head ``g``. The best ``budget // 16``
    finished pages are read, and the unfinished one at the prefix's end. Quest (arXiv 2406.10774), as MagicDec drafts
    with it (arXiv 2408.11049).

    The bounds take an eighth of the keys' memory; a page gets its own once, when a verification has finished it.
    """

    name = "quest"
    changes_per_step = True

    def __init__(self, config: VegasConfig) -> None:
        super().__init__(config)
        self._pages: dict[int, _Pages] = {}

    def num_entries(self, prefix_len: int) -> int:
        """Whole pages up to the budget, and the unfinished one."""
        return self.config.budget(prefix_len) // PAGE_SIZE * PAGE_SIZE + prefix_len % PAGE_SIZE

    def select(self, verified: Verified) -> None:
        """Bring the bounds of every request up to date with its prefix."""
        for slot, prefix_len in zip(verified.slots, verified.prefix_lens, strict=True):
            if slot not in self._pages:
                self._pages[slot] = _Pages([_allocate(keys) for keys in verified.keys])
            pages, finished = self._pages[slot], prefix_len // PAGE_SIZE
            if finished == pages.count:
                continue
            for keys, bounds in zip(verified.keys, pages.bounds, strict=True):
                kv_heads, _, head_dim = keys[slot].shape
                new = keys[slot, :, pages.count * PAGE_SIZE : finished * PAGE_SIZE]
                new = new.view(kv_heads, finished - pages.count, PAGE_SIZE, head_dim)
                largest, smallest = bounds[:, pages.count : finished].chunk(2, dim=-1)
                largest.copy_(new.amax(2))
                smallest.copy_(new.amin(2))
            pages.count = finished

    def select_step(self, layer: int, slot: int, queries: Queries, keys: Tensor, prefix_len: int) -> Tensor:
        """See `Policy.select_step`."""
        kv_heads = keys.shape[0]
        pages = self._pages[slot]
        wanted = self.config.budget(prefix_len) // PAGE_SIZE
        scores = page_scores(queries.query[:, 0], pages.bounds[layer][:, : pages.count])
        counts = torch.tensor([[pages.count], [wanted]], device=keys.device)
        best = select_positions(scores[None], counts[0], counts[1])[0]
        within = torch.arange(PAGE_SIZE, device=keys.device)
        positions = (best[..., None] * PAGE_SIZE + within).flatten(1)
        unfinished = torch.arange(pages.count * PAGE_SIZE, prefix_len, device=keys.device)
        return torch.cat([positions, unfinished.expand(kv_heads, -1)], dim=1)

    def release(self, slot: int) -> None:
        """See `Policy.release`."""
        self._pages.pop(slot, None)


def page_scores(query: Tensor, bounds: Tensor) -> Tensor:
    """Rank pages; see `QuestPolicy`.

    ``max(q * max, q * min)`` is ``q * max`` where ``q`` is positive and ``q * min`` elsewhere, so the sum over a
    group's heads is one product of their summed positive and negative parts with the bounds.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, head_dim]``.
    bounds : Tensor
        Shape ``[num_kv_heads, pages, 2 * head_dim]``, largest before smallest.

    Returns
    -------
    Tensor
        Float32, shape ``[num_kv_heads, pages]``.

    """
    heads = query.float().view(bounds.shape[0], -1, query.shape[-1])
    signed = torch.cat([heads.clamp(min=0).sum(1), heads.clamp(max=0).sum(1)], dim=-1)
    return torch.matmul(bounds.float(), signed[..., None])[..., 0]


def _allocate(keys: Tensor) -> Tensor:
    _, kv_heads, length, head_dim = keys.shape
    return keys.new_empty(kv_heads, length // PAGE_SIZE, 2 * head_dim)
