"""The lists of cache slots that drafts read in vLLM, chosen for one draft at a time; one owner per engine.

Row ``i`` of a verified batch is row ``i`` of the draft's batch, so nothing here is keyed by request or outlives a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vegas_spec.config import VegasConfig
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention
from vegas_spec.policies import make_policy
from vegas_spec.vllm.worker.memory import draft_lists, largest_budget


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
class OpParams:
    """What the ops need to know of a layer: scale of the logits, soft-cap, sinks; scales of a cache in FP8."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None


@dataclass(frozen=True)
class Sizes:
    """What the buffers must hold.

    Attributes
    ----------
    num_layers : int
        Layers with full attention, which all have these heads:
    num_heads, num_kv_heads, head_dim : int
        Of one layer (of one rank, under tensor parallelism).
    max_requests, max_model_len : int
        vLLM's limits.
    tokens : int
        Prefix tokens that can be in flight in one step.
    max_bytes : int or None
        Most memory for the chosen slots; where the budget of ``max_requests`` full contexts would need more, the budget
        of each request is cut to what fits.
    device : torch.device
        Where the model runs.

    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_requests: int
    max_model_len: int
    tokens: int
    max_bytes: int | None
    device: torch.device


class DraftKV(ABC):
    """The lists of cache slots that drafts read, and attention over them.

    All buffers are allocated at once, where vLLM's memory profile sees them, and keep their addresses.

    Parameters
    ----------
    config : VegasConfig
        Policy, budget, score, rows, granularity.
    sizes : Sizes
        What for.
    beyond : int
        Entries that a request's draft may read beyond its budget.

    Attributes
    ----------
    counts, prefix_lens : Tensor
        How many entries of its prefix each request's draft reads, and how long that is; int32, shape
        ``[max_requests]``.
    slots : Tensor
        The lists, int32, shape ``[lists, max_requests, groups, width]``.
    most : int
        The largest budget, per layer and group.
    tail : int
        Entries from the prefix to the last draft's own position: gamma verified drafts and gamma new ones.

    """

    prefix_lens: Tensor

    def __init__(self, config: VegasConfig, sizes: Sizes, *, beyond: int = 0) -> None:
        self.config, self.sizes = config, sizes
        self.tail = config.tail
        heads = sizes.num_layers, sizes.num_kv_heads
        self.most = largest_budget(config, *heads, sizes.max_requests, sizes.max_model_len, sizes.max_bytes)
        self.workspace = SparseWorkspace.allocate(
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            max_requests=sizes.max_requests,
            device=sizes.device,
        )
        self.counts = torch.zeros(sizes.max_requests, dtype=torch.int32, device=sizes.device)
        lists, groups = draft_lists(config, *heads)
        self.slots = self.counts.new_zeros((lists, sizes.max_requests, groups, self.most + self.tail + beyond))
        self.unscored: dict[tuple[int, ...], tuple[ScoredRows, int]] = {}
        """Rows and block size of the last step, if it was not scored, by the layers that it concerns."""

    @property
    def scores(self) -> bool:
        """Whether verification decides what drafts read."""
        return False

    @property
    def dropped(self) -> int:
        """Requests whose scores found no room, so far; waits for the device."""
        return 0

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        sparse = (self.workspace.partial_out, self.workspace.partial_stats, self.workspace.arrivals)
        return sum(tensor.nbytes for tensor in (self.slots, self.counts, *sparse))

    def prepare(self, rows: ScoredRows, layers: Sequence[int], block_size: int) -> None:
        """Before the first of these layers runs: how a step's rows lie."""
        self.unscored[tuple(layers)] = rows, block_size

    @abstractmethod
    def of_layer(self, layer: int) -> LayerDraftKV:
        """The share of one full-attention layer."""

    @abstractmethod
    def choose(self) -> None:
        """Before a draft: choose for the layers whose last step was not scored."""

    def budgets(self, prefix_lens: Tensor) -> Tensor:
        """Entries that drafts may read of these prefixes, int64."""
        return self.config.budget(prefix_lens).clamp(min=0, max=self.most)


@dataclass(frozen=True)
class LayerDraftKV(ABC):
    """One full-attention layer's share of a `DraftKV`, which its attention holds."""

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
        params: OpParams,
        *,
        out: Tensor,
    ) -> None:
        """Attend from the scored rows, and choose what each request's next draft reads."""
        raise TypeError("this policy's rows are not scored")

    def verified(self, query: Tensor, key_cache: Tensor, slot_mapping: Tensor, params: OpParams) -> None:
        """Where verification scores nothing: see a step's queries, and its keys.

        The keys stand at these slots (none if negative).
        """
        return

    @abstractmethod
    def chosen(
        self, query: Tensor, key_cache: Tensor, block_table: Tensor, seq_lens: Tensor, params: OpParams
    ) -> Tensor:
        """Slots that a draft step reads, int32, shape ``[batch, groups, width]``."""

    def draft(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        params: OpParams,
        *,
        out: Tensor,
    ) -> None:
        """Attend from one row per request to the chosen positions and to everything since the prefix."""
        owner = self.owner
        sparse_attention(
            query,
            key_cache,
            value_cache,
            self.chosen(query, key_cache, block_table, seq_lens, params),
            owner.counts,
            owner.prefix_lens,
            seq_lens,
            owner.workspace,
            out=out,
            scale=params.scale,
            softcap=params.softcap,
            sinks=params.sinks,
            key_scale=params.key_scale,
            value_scale=params.value_scale,
            validate=self.validate,
        )


class ScoredKV(DraftKV):
    """Slots chosen layer by layer as verification runs, by the scores that it makes; and the scratch for choosing.

    A request whose scores find no room in the scratch drafts over the first and the latest positions.
    """

    def __init__(self, config: VegasConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        request = make_policy(config).score_request
        assert request is not None
        self.request = request
        self.plan = VerifyPlan.allocate(
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            max_query_len=config.num_speculative_tokens + 1,
            max_requests=sizes.max_requests,
            score_capacity=sizes.tokens,
            granularity=self.request.granularity,
            lookahead=self.request.lookahead,
            device=sizes.device,
        )
        self.prefix_lens = self.plan.prefix_lens
        self._others: dict[tuple[int, ...], Tensor] = {}
        """Of layers that were not scored, all but the first."""

    @property
    def scores(self) -> bool:
        """See `DraftKV.scores`."""
        return True

    @property
    def dropped(self) -> int:
        """See `DraftKV.dropped`."""
        return int(self.plan.dropped)

    @property
    def num_bytes(self) -> int:
        """See `DraftKV.num_bytes`."""
        return super().num_bytes + sum(self.plan.scratch_bytes().values())

    def of_layer(self, layer: int) -> LayerScoredKV:
        """See `DraftKV.of_layer`."""
        return LayerScoredKV(self, layer)

    def prepare(self, rows: ScoredRows, layers: Sequence[int], block_size: int) -> None:
        """See `DraftKV.prepare`; lays out a step's scoring, reading lengths on the device only."""
        self.unscored.pop(tuple(layers), None)
        if rows.scored:
            self.lay_out(rows)
        else:
            super().prepare(rows, layers, block_size)

    def lay_out(self, rows: ScoredRows) -> None:
        """Set every request's prefix, budget and place in the score scratch."""
        batch = rows.seq_lens.shape[0]
        self.plan.prepare(rows.query_start_loc, rows.seq_lens)
        self.counts[:batch] = self.budgets(self.prefix_lens[:batch])

    def choose(self) -> None:
        """After a plain step: the first and the latest positions, in every layer."""
        for layers, (rows, block_size) in self.unscored.items():
            batch = rows.seq_lens.shape[0]
            self.lay_out(rows)
            self.plan.score_offsets[:batch] = -1
            first = self.slots[layers[0], :batch]
            self.select(rows, first, block_size)
            if layers not in self._others:
                self._others[layers] = torch.tensor(layers[1:], dtype=torch.int64, device=self.slots.device)
            self.slots[:, :batch].index_copy_(0, self._others[layers], first.expand(len(layers) - 1, *first.shape))
        self.unscored.clear()

    def select(self, rows: ScoredRows, slots: Tensor, block_size: int, validate: bool = True) -> None:
        """Choose what each request's next draft reads in a layer."""
        select_kv(
            self.plan,
            self.counts[: rows.seq_lens.shape[0]],
            rows.block_table,
            block_size,
            slots=slots,
            score=self.request.score,
            tail=self.tail,
            validate=validate,
        )


@dataclass(frozen=True)
class LayerScoredKV(LayerDraftKV):
    """One full-attention layer's share of a `ScoredKV`."""

    owner: ScoredKV

    def verify(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        rows: ScoredRows,
        params: OpParams,
        *,
        out: Tensor,
    ) -> None:
        """See `LayerDraftKV.verify`."""
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
            scale=params.scale,
            score=owner.request.score,
            rows=owner.request.rows,
            softcap=params.softcap,
            sinks=params.sinks,
            key_scale=params.key_scale,
            value_scale=params.value_scale,
            validate=self.validate,
        )
        owner.select(rows, owner.slots[self.layer, :batch], key_cache.shape[1], self.validate)

    def chosen(
        self, query: Tensor, key_cache: Tensor, block_table: Tensor, seq_lens: Tensor, params: OpParams
    ) -> Tensor:
        """See `LayerDraftKV.chosen`."""
        return self.owner.slots[self.layer, : len(query)]
