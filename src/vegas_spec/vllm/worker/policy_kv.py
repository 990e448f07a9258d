"""Any policy that verification does not score for, over vLLM's paged cache: the policy's own code chooses.

A policy that selects once is asked before each draft, outside the draft's CUDA graph; one that selects at each step is
asked within it. What it remembers it keys by vLLM's request slot. In plain torch, unless the policy brings kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.policies import Drafting, Policy, Queries, Room, Verified
from vegas_spec.policies.keys import PAGE_SIZE, PagedKeys
from vegas_spec.selection import with_recent
from vegas_spec.vllm.worker.draft_kv import DraftKV, LayerDraftKV, OpParams, ScoredRows, Sizes


def slots_of(position: Tensor, block_table: Tensor, block_size: int) -> Tensor:
    """Cache slots of positions, int32, of their shape ``[batch, ...]``; beyond the block table they mean nothing."""
    block = (position // block_size).clamp(0, block_table.shape[1] - 1)
    slots = block_table.long().gather(1, block.flatten(1)).view_as(block) * block_size + position % block_size
    return slots.to(torch.int32)


@dataclass(frozen=True)
class Accepted:
    """What a selection needs to know of a step.

    Attributes
    ----------
    slots : list of int
        Slot of each request; -1 if it is in the middle of its prompt.
    slot_index : Tensor
        Slot of each request, int64, shape ``[batch]``.
    rows : Tensor
        Its last accepted row among the step's tokens, int64, shape ``[batch]``.
    seen : Tensor
        The keys that this row sees, int32, shape ``[batch]``.
    most_seen : list of int
        What the host knows of that: at most so many.

    """

    slots: list[int]
    slot_index: Tensor
    rows: Tensor
    seen: Tensor
    most_seen: list[int]


class PolicyKV(DraftKV):
    """Lists that a policy chooses.

    Parameters
    ----------
    config, sizes
        See `DraftKV`.
    policy : Policy
        Who chooses.
    dtype : torch.dtype
        Of queries and keys.
    max_tokens : int
        Most tokens of a step.
    over_ranks : callable
        Sums a tensor over the ranks of tensor parallelism, which have some of the heads each.

    """

    def __init__(
        self,
        config: VegasConfig,
        sizes: Sizes,
        policy: Policy,
        *,
        dtype: torch.dtype,
        max_tokens: int,
        over_ranks: Callable[[Tensor], Tensor],
    ) -> None:
        self.policy, self.dtype, self.over_ranks = policy, dtype, over_ranks
        budget = config.budget(sizes.max_model_len)
        super().__init__(config, sizes, beyond=policy.most_entries(budget) - budget)
        self.prefix_lens = torch.zeros_like(self.counts)
        self.width = self.slots.shape[-1] - self.tail
        self.list_of = [min(layer, len(self.slots) - 1) for layer in range(sizes.num_layers)]
        """Which of the lists a layer reads."""
        rows = max_tokens if policy.keeps_queries else 0
        self.queries = torch.zeros(rows, sizes.num_heads, sizes.head_dim, dtype=dtype, device=sizes.device)
        """The latest step's, in the last layer; where they are, a CUDA graph of verifications puts them too."""
        self.last: tuple[Tensor, OpParams] | None = None
        """Keys of the last layer, and what else it attends with."""
        self.step: Accepted | None = None
        self.fit(sizes.tokens)

    def of_layer(self, layer: int) -> LayerPolicyKV:
        """See `DraftKV.of_layer`."""
        return LayerPolicyKV(self, layer)

    @property
    def num_bytes(self) -> int:
        """See `DraftKV.num_bytes`."""
        return super().num_bytes + self.policy.num_bytes + self.queries.nbytes

    def fit(self, tokens: int) -> None:
        """Be told how many tokens the cache holds; called again when that is settled, and all is forgotten then."""
        self.policy.reserve(
            Room(
                layers=[(self.sizes.num_kv_heads, self.sizes.head_dim)] * self.sizes.num_layers,
                num_pages=-(-tokens // PAGE_SIZE),
                max_requests=self.sizes.max_requests,
                most_entries=self.most,
                dtype=self.dtype,
                device=self.sizes.device,
                over_ranks=self.over_ranks,
            )
        )

    def divide(self, parts: Sequence[tuple[int, ...]]) -> None:
        """Be told which layers share a block table; lets go of the cache that the memory profile was taken with."""
        self.last = None
        if self.policy.per_step or self.policy.sets != "model":
            return
        if len(parts) > len(self.slots):
            self.slots = self.slots.new_zeros((len(parts), *self.slots.shape[1:]))
        for part, layers in enumerate(parts):
            for layer in layers:
                self.list_of[layer] = part

    def accepted(self, batch: Any, num_rejected: Tensor, drafting: bool) -> None:
        """Be told, after a step, what of it was accepted, and whether a draft follows.

        Parameters
        ----------
        batch : InputBatch
            vLLM's own, of the step.
        num_rejected : Tensor
            Drafts rejected per request, int32, shape ``[batch]``.
        drafting : bool
            False if the requests are not drafted for; `choose` is not called then.

        """
        n, slots = batch.num_reqs, batch.idx_mapping_np
        reading = batch.is_prefilling_np[:n]
        # Of a prompt that was read, and of plain decoding, the policy has seen no verification.
        for slot in slots[reading] if drafting else slots:
            self.policy.release(int(slot))
        self.step = None
        if drafting:
            read = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
            unfinished = reading & (read < batch.prefill_len_np)
            self.step = Accepted(
                slots=[-1 if left else slot for slot, left in zip(slots.tolist(), unfinished.tolist(), strict=True)],
                slot_index=batch.idx_mapping[:n].long(),
                rows=batch.query_start_loc[1 : n + 1].long() - 1 - num_rejected[:n],
                seen=batch.seq_lens[:n] - num_rejected[:n],
                most_seen=batch.seq_lens_cpu_upper_bound[:n].tolist(),
            )

    def choose(self) -> None:
        """See `DraftKV.choose`: ask a policy that selects once, and list what it answers."""
        step, self.step = self.step, None
        for rows, _ in self.unscored.values():
            self.lay_out(rows)
        if step is not None and not self.policy.per_step:
            positions = self.ask(step)
            n = len(step.slots)
            self.counts[:n] = (positions[0, :, 0] >= 0).sum(-1)
            for layers, (rows, block_size) in self.unscored.items():
                for layer in layers if len(positions) > 1 else layers[:1]:
                    chosen = positions[layer if len(positions) > 1 else 0]
                    listed = self.list_slots(chosen, rows.block_table[:n], block_size)
                    self.slots[self.list_of[layer], :n] = listed
        self.unscored.clear()

    def lay_out(self, rows: ScoredRows) -> None:
        """Set every request's prefix, and how many entries of it drafts read."""
        batch = rows.seq_lens.shape[0]
        query_lens = rows.query_start_loc.diff()
        active = (query_lens > 0) & (rows.seq_lens > 0)
        self.prefix_lens[:batch] = torch.where(active, rows.seq_lens - query_lens + 1, 0)
        prefix_lens = self.prefix_lens[:batch].long()
        if self.policy.per_step:
            self.counts[:batch] = self.policy.num_entries(prefix_lens, self.budgets(prefix_lens))

    def ask(self, step: Accepted) -> Tensor:
        """Ask the policy what the next draft reads, after `lay_out`."""
        n = len(step.slots)
        prefix_lens = self.prefix_lens[:n].long()
        queries, keys = None, []
        if self.policy.keeps_queries and self.last is not None:
            cache, params = self.last
            [table] = [rows.block_table for layers, (rows, _) in self.unscored.items() if self.last_layer in layers]
            queries = Queries(self.queries[step.rows].transpose(0, 1), params.scale, params.sinks)
            keys = [PagedKeys(cache, table, self.dtype, params.key_scale)]
        chosen = self.policy.select(
            Verified(
                slots=step.slots,
                slot_index=step.slot_index,
                prefix_lens=prefix_lens,
                budgets=self.budgets(prefix_lens),
                width=self.width,
                keys=keys,
                queries=queries,
                seen=step.seen,
                most_seen=step.most_seen,
            )
        )
        assert chosen is not None
        return chosen

    @property
    def last_layer(self) -> int:
        """Place of the last layer with full attention among these."""
        return self.sizes.num_layers - 1

    def list_slots(self, positions: Tensor, block_table: Tensor, block_size: int) -> Tensor:
        """List the cache slots of chosen positions, then those from the prefix's end on; ``[batch, groups, width]``."""
        n, width = len(positions), self.slots.shape[-1]
        listed = with_recent(positions, self.counts[:n], self.prefix_lens[:n], width)
        return slots_of(listed, block_table, block_size)


@dataclass(frozen=True)
class LayerPolicyKV(LayerDraftKV):
    """One full-attention layer's share of a `PolicyKV`."""

    owner: PolicyKV

    def verified(self, query: Tensor, key_cache: Tensor, slot_mapping: Tensor, params: OpParams) -> None:
        """See `LayerDraftKV.verified`."""
        owner = self.owner
        if owner.policy.keeps_queries and self.layer == owner.last_layer:
            owner.queries[: len(query)] = query
            owner.last = key_cache, params
        if type(owner.policy).observe is not Policy.observe:
            keys = PagedKeys(key_cache, slot_mapping[None, :0], owner.dtype, params.key_scale)
            owner.policy.observe(self.layer, keys, slot_mapping)

    def chosen(
        self, query: Tensor, key_cache: Tensor, block_table: Tensor, seq_lens: Tensor, params: OpParams
    ) -> Tensor:
        """See `LayerDraftKV.chosen`."""
        owner, n = self.owner, len(query)
        slots = owner.slots[owner.list_of[self.layer], :n]
        if owner.policy.per_step:
            prefix_lens = owner.prefix_lens[:n].long()
            drafting = Drafting(
                prefix_lens=prefix_lens,
                budgets=owner.budgets(prefix_lens),
                seq_lens=seq_lens[:n],
                width=owner.width,
                queries=Queries(query.transpose(0, 1), params.scale, params.sinks),
                keys=PagedKeys(key_cache, block_table[:n], owner.dtype, params.key_scale),
            )
            positions = owner.policy.select_step(self.layer, drafting)
            slots.copy_(owner.list_slots(positions, block_table[:n], key_cache.shape[1]))
        return slots
