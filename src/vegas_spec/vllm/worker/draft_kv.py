"""What a verification leaves for the draft that follows it, and for nothing after that: one owner per engine.

Row ``i`` of a verified batch is row ``i`` of the draft's batch, so nothing here is keyed by request or outlives a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention
from vegas_spec.policies import policy_class


@dataclass(frozen=True)
class ScoredRows:
    """The query rows of a step that are scored: verifications whole, prompts by the last row of their chunk.

    Attributes
    ----------
    query_start_loc, seq_lens, block_table : Tensor
        As `vegas_spec.ops.verify_attention` takes them.
    index : Tensor or None
        Where the scored rows stand among the step's tokens, int64; None if they are all of them.
    scored : bool
        False for plain decoding, after which a draft is not expected, with one row per request; and where the policy
        scores nothing.
    first_prompt : int
        With `index`, the first request that reads its prompt, if all later ones do too and some before it decode;
        else 0.

    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    index: Tensor | None
    scored: bool = True
    first_prompt: int = 0


@dataclass(frozen=True)
class Likeness:
    """What makes a layer's attention its own: scale of the logits, soft-cap, sinks; scales of a cache in FP8."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None


def slots_of(position: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Cache slots of positions, int32, of their shape ``[batch, ...]``; beyond the block table they mean nothing."""
    block = (position // block_size).clamp(max=block_table.shape[1] - 1)
    slots = block_table.long().gather(1, block.flatten(1)).view_as(block) * block_size + position % block_size
    return slots.to(torch.int32)


class DraftKV:
    """The cache slots that drafts read, chosen layer by layer as verification runs, and the scratch for choosing them.

    All buffers are allocated at once, where vLLM's memory profile sees them, and keep their addresses.

    Parameters
    ----------
    config : VegasConfig
        Policy, budget, score, rows, granularity.
    num_layers : int
        Layers with full attention, which all have these heads:
    num_heads, num_kv_heads, head_dim : int
        Of one layer (of one rank, under tensor parallelism).
    max_requests, max_model_len : int
        vLLM's limits.
    score_capacity : int
        Prefix tokens that can be scored in one step. A request that finds no room drafts over the first and the latest
        positions.
    max_bytes : int or None
        Most memory for the chosen slots; where the budget of ``max_requests`` full contexts would need more, the budget
        of each request is cut to what fits.
    device : torch.device
        Where the model runs.

    """

    def __init__(
        self,
        config: VegasConfig,
        *,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_requests: int,
        max_model_len: int,
        score_capacity: int,
        max_bytes: int | None,
        device: torch.device,
    ) -> None:
        self.scores = policy_class(config.policy).scores
        """Whether verification decides what drafts read."""
        if config.policy == "stream":
            config = dataclasses.replace(config, granularity="layer")
        self.config = config
        gamma = config.num_speculative_tokens
        # From the prefix to the last draft's own position: gamma verified drafts and gamma new ones.
        self.tail = 2 * gamma + 1
        groups = num_kv_heads if config.granularity == "kv_head" else 1
        width = config.budget(max_model_len) + self.tail
        if max_bytes is not None:
            fitting = max_bytes // (num_layers * max_requests * groups * 4)
            width = max(min(width, fitting), min(config.kv_budget_min, max_model_len) + self.tail)
        self.most = width - self.tail
        """Most positions that a request's draft reads of its prefix, per layer and group."""
        self.plan = VerifyPlan.allocate(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_query_len=gamma + 1,
            max_requests=max_requests,
            score_capacity=score_capacity,
            granularity=config.granularity,
            device=device,
        )
        self.workspace = SparseWorkspace.allocate(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_requests=max_requests,
            device=device,
        )
        self.unscored: dict[tuple[int, ...], tuple[ScoredRows, int]] = {}
        """Rows and block size of the last step, if it was not scored, by the layers that it concerns."""
        self.others: dict[tuple[int, ...], Tensor] = {}
        """Of such layers, all but the first."""
        self.counts = torch.zeros(max_requests, dtype=torch.int32, device=device)
        self.slots = torch.zeros((num_layers, max_requests, groups, width), dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        sparse = (self.workspace.partial_out, self.workspace.partial_stats, self.workspace.arrivals)
        return sum(self.plan.scratch_bytes().values()) + sum(t.nbytes for t in (self.slots, self.counts, *sparse))

    def of_layer(self, layer: int) -> LayerDraftKV:
        """The share of one full-attention layer."""
        return LayerDraftKV(self, layer)

    def prepare(self, rows: ScoredRows, layers: Sequence[int], block_size: int) -> None:
        """Lay out one step's scoring for these layers, before the first runs; reads lengths on the device only."""
        self.unscored.pop(tuple(layers), None)
        if rows.scored:
            self.lay_out(rows)
        else:
            self.unscored[tuple(layers)] = rows, block_size

    def lay_out(self, rows: ScoredRows) -> None:
        """Set every request's prefix, budget and place in the score scratch."""
        batch = rows.seq_lens.shape[0]
        self.plan.prepare(rows.query_start_loc, rows.seq_lens)
        self.counts[:batch] = self.config.budget(self.plan.prefix_lens[:batch]).clamp(min=0, max=self.most)

    def fit(self, tokens: int) -> None:
        """Be told how many tokens the cache holds; called again when that is settled."""

    def divide(self, parts: Sequence[tuple[int, ...]]) -> None:
        """Be told which layers share a block table; called again when the cache is settled."""

    def accepted(self, batch: Any, num_rejected: Tensor, drafting: bool) -> None:
        """Be told, after a step, what of it was accepted, and whether a draft follows.

        Parameters
        ----------
        batch : InputBatch
            vLLM's own, of the step.
        num_rejected : Tensor
            Drafts rejected per request, int32, shape ``[batch]``.
        drafting : bool
            False if the requests are not drafted for; `choose_unscored` is not called then.

        """

    def choose_unscored(self) -> None:
        """Before a draft that nothing was scored for: the first and the latest positions, in every layer."""
        for layers, (rows, block_size) in self.unscored.items():
            batch = rows.seq_lens.shape[0]
            self.lay_out(rows)
            self.plan.score_offsets[:batch] = -1
            first = self.slots[layers[0], :batch]
            self.select(rows, first, block_size)
            if layers not in self.others:
                self.others[layers] = torch.tensor(layers[1:], dtype=torch.int64, device=self.slots.device)
            self.slots[:, :batch].index_copy_(0, self.others[layers], first.expand(len(layers) - 1, *first.shape))
        self.unscored.clear()

    def select(self, rows: ScoredRows, slots: Tensor, block_size: int, validate: bool = True) -> None:
        """Choose what each request's next draft reads in a layer."""
        select_kv(
            self.plan,
            self.counts[: rows.seq_lens.shape[0]],
            rows.block_table,
            block_size,
            slots=slots,
            score=self.config.score,
            tail=self.tail,
            validate=validate,
        )


@dataclass(frozen=True)
class LayerDraftKV:
    """One full-attention layer's share of `DraftKV`, which its attention holds."""

    owner: DraftKV
    layer: int

    @property
    def validate(self) -> bool:
        """Whether the ops check what they are given: for the first layer, since all are alike."""
        return self.layer == 0

    def verify(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        rows: ScoredRows,
        like: Likeness,
        *,
        out: Tensor,
    ) -> None:
        """Attend from the scored rows, and choose what each request's next draft reads."""
        owner, batch = self.owner, rows.seq_lens.shape[0]
        verify_attention(
            query,
            key_cache,
            value_cache,
            rows.block_table,
            rows.query_start_loc,
            rows.seq_lens,
            owner.plan,
            out=out,
            scale=like.scale,
            score=owner.config.score,
            rows=owner.config.rows,
            softcap=like.softcap,
            sinks=like.sinks,
            key_scale=like.key_scale,
            value_scale=like.value_scale,
            validate=self.validate,
        )
        owner.select(rows, owner.slots[self.layer, :batch], key_cache.shape[1], self.validate)

    def verified(self, query: Tensor, key_cache: Tensor, slot_mapping: Tensor, like: Likeness) -> None:
        """Where verification scores nothing: see a step's queries, and its keys.

        The keys stand at these slots (none if negative).
        """

    def chosen(self, query: Tensor, block_table: Tensor, block_size: int) -> Tensor:
        """Slots that a draft step reads, int32, shape ``[batch, groups, width]``; most policies chose them before."""
        return self.owner.slots[self.layer, : len(query)]

    def draft(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        like: Likeness,
        *,
        out: Tensor,
    ) -> None:
        """Attend from one row per request to the chosen positions and to everything since the prefix."""
        owner = self.owner
        sparse_attention(
            query,
            key_cache,
            value_cache,
            self.chosen(query, block_table, key_cache.shape[1]),
            owner.counts,
            owner.plan.prefix_lens,
            seq_lens,
            owner.workspace,
            out=out,
            scale=like.scale,
            softcap=like.softcap,
            sinks=like.sinks,
            key_scale=like.key_scale,
            value_scale=like.value_scale,
            validate=self.validate,
        )
