"""Policy ``quest`` in a paged cache: every draft step ranks pages of 16 keys, as `vegas_spec.policies.quest` does.

Bounds of a page stand by its place in the cache, so what requests share they share too, and nothing moves when requests
come and go. All in plain torch, to compare acceptance with: the bounds take a sixteenth of the cache's memory, and each
step copies those of all its pages.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies.quest import PAGE_SIZE, page_scores
from vegas_spec.vllm.worker.draft_kv import DraftKV, LayerDraftKV, Likeness, ScoredRows, slots_of

CHUNK = 1024
"""Tokens whose pages are bounded at once."""


class QuestKV(DraftKV):
    """Bounds of every page and layer, and the slots of the step that runs; see `DraftKV` for the parameters."""

    def __init__(self, config: VegasConfig, *, num_layers: int, dtype: torch.dtype, **options: Any) -> None:
        super().__init__(dataclasses.replace(config, granularity="kv_head"), num_layers=1, **options)
        _, requests, kv_heads, width = self.slots.shape
        # An unfinished page comes on top of the budget.
        self.slots = self.slots.new_zeros((1, requests, kv_heads, width + PAGE_SIZE - 1))
        self.column = torch.arange(self.slots.shape[-1], device=self.slots.device)
        self.bounds = [self.slots.new_zeros((1, kv_heads, 2 * options["head_dim"]), dtype=dtype)] * num_layers
        """Per layer, each page's element-wise largest keys, then the smallest; at the end one of no page."""
        self.fit(options["score_capacity"])

    def of_layer(self, layer: int) -> LayerQuestKV:
        """The share of one full-attention layer."""
        return LayerQuestKV(self, layer)

    def fit(self, tokens: int) -> None:
        """Have room for the pages of a cache of this size; what was bounded is forgotten if there was not."""
        pages = -(-tokens // PAGE_SIZE)
        if pages >= len(self.bounds[0]):
            self.bounds = [bounds.new_zeros((pages + 1, *bounds.shape[1:])) for bounds in self.bounds]

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        return super().num_bytes + sum(bounds.nbytes for bounds in self.bounds)

    def lay_out(self, rows: ScoredRows) -> None:
        """Set every request's prefix, and how many entries its drafts read: whole pages, and the unfinished one."""
        super().lay_out(rows)
        batch = rows.seq_lens.shape[0]
        unfinished = self.plan.prefix_lens[:batch] % PAGE_SIZE
        self.counts[:batch] = self.counts[:batch] // PAGE_SIZE * PAGE_SIZE + unfinished

    def choose_unscored(self) -> None:
        """Before a draft: nothing is chosen yet but how much."""
        for rows, _ in self.unscored.values():
            self.lay_out(rows)
        self.unscored.clear()

    def bound_pages(self, layer: int, keys: Tensor, slot_mapping: Tensor) -> None:
        """Bound the pages whose last key is among a step's tokens, anew if they were.

        A page that rejected drafts have filled is bounded again when the tokens that come in their place are verified.
        """
        pages_per_block = keys.shape[1] // PAGE_SIZE
        within = torch.arange(PAGE_SIZE, device=keys.device)
        bounds = self.bounds[layer]
        for slots in torch.split(slot_mapping, CHUNK):
            page = slots.clamp(min=0) // PAGE_SIZE
            offset = (page % pages_per_block * PAGE_SIZE)[:, None] + within
            of_page = keys[(page // pages_per_block)[:, None], offset]
            ends = (slots >= 0) & (slots % PAGE_SIZE == PAGE_SIZE - 1)
            page = torch.where(ends, page, len(bounds) - 1)
            bounds[page] = torch.cat([of_page.amax(1), of_page.amin(1)], dim=-1).to(bounds.dtype)

    def choose_pages(self, layer: int, query: Tensor, block_table: Tensor, block_size: int) -> Tensor:
        """Rank the finished pages by a draft step's queries; give the slots of all that the step reads.

        Parameters
        ----------
        layer : int
            Of those with full attention.
        query : Tensor
            Shape ``[batch, num_heads, head_dim]``.
        block_table : Tensor
            int32, shape ``[batch, blocks per request]``.
        block_size : int
            Tokens per block, a multiple of 16.

        Returns
        -------
        Tensor
            int32, shape ``[batch, kv_heads, width]``: the best pages, the unfinished one, and all that came since.

        """
        batch, pages_per_block = len(query), block_size // PAGE_SIZE
        prefix = self.plan.prefix_lens[:batch, None, None].long()
        finished, in_pages = prefix // PAGE_SIZE, self.counts[:batch, None, None].long() - prefix % PAGE_SIZE
        page = torch.arange(block_table.shape[1] * pages_per_block, device=query.device)
        place = block_table[:, page // pages_per_block].long() * pages_per_block + page % pages_per_block
        bounds = self.bounds[layer][place.clamp(0, len(self.bounds[layer]) - 1)].transpose(1, 2).float()
        scores = page_scores(query.transpose(0, 1), bounds)
        scores = torch.where(page < finished, scores, -torch.inf)
        best = scores.topk(min(len(page), -(-self.most // PAGE_SIZE))).indices
        column = self.column.expand(*best.shape[:2], -1)
        ranked = best.gather(2, (column // PAGE_SIZE).clamp(max=best.shape[2] - 1)) * PAGE_SIZE + column % PAGE_SIZE
        position = torch.where(column < in_pages, ranked, finished * PAGE_SIZE + column - in_pages)
        self.slots[0, :batch] = slots_of(position, block_table, block_size)
        return self.slots[0, :batch]


@dataclass(frozen=True)
class LayerQuestKV(LayerDraftKV):
    """One full-attention layer's share of `QuestKV`."""

    owner: QuestKV

    def verified(self, query: Tensor, key_cache: Tensor, slot_mapping: Tensor, like: Likeness) -> None:
        """See `LayerDraftKV.verified`."""
        self.owner.bound_pages(self.layer, key_cache, slot_mapping)

    def chosen(self, query: Tensor, block_table: Tensor, block_size: int) -> Tensor:
        """See `LayerDraftKV.chosen`."""
        return self.owner.choose_pages(self.layer, query, block_table[: len(query)], block_size)
