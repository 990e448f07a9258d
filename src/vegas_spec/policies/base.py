"""The questions that a draft policy answers, and what it may look at to answer them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from vegas_spec.config import Count, Granularity, Rows, Score, VegasConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vegas_spec.policies.keys import KeyView


@dataclass(frozen=True)
class ScoreRequest:
    """Which scores a verification collects for the policy, and how far they flow, in the terms of `VegasConfig`."""

    rows: Rows
    score: Score
    granularity: Granularity
    lookahead: float

    @classmethod
    def of(cls, config: VegasConfig) -> ScoreRequest:
        """What the options say."""
        return cls(config.rows, config.score, config.granularity, config.lookahead)


@dataclass(frozen=True)
class Queries:
    """Queries of rows in one layer, and what else their attention weights depend on.

    Attributes
    ----------
    query : Tensor
        Position-encoded, shape ``[num_query_heads, rows, head_dim]``.
    scale : float
        Of the products with the keys.
    sinks : Tensor or None
        A learnt logit per query head that takes weight but has no key.

    """

    query: Tensor
    scale: float
    sinks: Tensor | None


@dataclass(frozen=True)
class Room:
    """What a run needs room for, told before it begins; see `Policy.reserve`.

    Attributes
    ----------
    layers : sequence of (int, int)
        KV heads and head dimension of each layer with full attention (of this rank, under tensor parallelism).
    num_pages : int
        Pages of the cache, per layer.
    max_requests : int
        Request slots.
    most_entries : int
        The largest budget that a request will have.
    dtype : torch.dtype
        For what is kept of keys.
    device : torch.device
        Of the cache.
    over_ranks : callable
        Sums a tensor over the ranks of tensor parallelism, which have some of the heads each.

    """

    layers: Sequence[tuple[int, int]]
    num_pages: int
    max_requests: int
    most_entries: int
    dtype: torch.dtype
    device: torch.device
    over_ranks: Callable[[Tensor], Tensor] = lambda tensor: tensor


@dataclass(frozen=True)
class Verified:
    """What a policy may look at after a verification: one entry per request of its batch, layers those with full
    attention.

    Attributes
    ----------
    slots : sequence of int
        The requests' places among all; a request keeps its own to its end, then `Policy.release` is told. -1 for a row
        whose draft is thrown away, and of which nothing may be remembered.
    slot_index : Tensor
        The same on the device, int64; any slot for -1.
    prefix_lens : Tensor
        Positions ``[0, prefix_lens[b])`` may be selected, int64, shape ``[batch]``. Their keys are final: no later step
        changes them.
    budgets : Tensor
        Entries that the next draft may read of them, int64, shape ``[batch]``: `VegasConfig.budget`.
    width : int
        Columns of the answer: at least as many as any of the requests has entries.
    keys : sequence of KeyView
        Per layer; exact in the prefix and for the accepted drafts.
    scores : Tensor or None
        What `Policy.score_request` asked for, float32, shape ``[layers, batch, groups, keys]``, groups being KV heads
        or 1. Not in vLLM, whose kernels rank the scores where they make them.
    queries : Queries or None
        The last accepted rows' in the last layer, shape ``[num_query_heads, batch, head_dim]``, if
        `Policy.keeps_queries`.
    seen : Tensor or None
        With `queries`: keys that those rows see, integer, shape ``[batch]``.
    most_seen : sequence of int
        What the host knows of `seen`: at most so many.

    """

    slots: Sequence[int]
    slot_index: Tensor
    prefix_lens: Tensor
    budgets: Tensor
    width: int
    keys: Sequence[KeyView]
    scores: Tensor | None = None
    queries: Queries | None = None
    seen: Tensor | None = None
    most_seen: Sequence[int] = ()


@dataclass(frozen=True)
class Drafting:
    """What one layer of a draft step computes with: one row per request.

    Attributes
    ----------
    prefix_lens, budgets : Tensor
        As in `Verified`; what came since the prefix is read anyway.
    seq_lens : Tensor
        Keys that a dense step would read, the row's own included, integer, shape ``[batch]``.
    width : int
        Columns of the answer.
    queries : Queries
        The rows of all requests, shape ``[num_query_heads, batch, head_dim]``.
    keys : KeyView
        The layer's; those since the prefix may be drafts'.

    """

    prefix_lens: Tensor
    budgets: Tensor
    seq_lens: Tensor
    width: int
    queries: Queries
    keys: KeyView


class Policy(ABC):
    """Chooses the KV entries that drafting reads.

    Three questions: which logits it wants from verification (`scores`, `keeps_queries`), which positions each layer's
    draft may read (`select`), and whether that changes from one draft step to the next (`per_step`, `select_step`).
    Cache, attention, sampling and measurements are the engine's, the same for all.

    An object serves one run: a policy that remembers something keys it by request slot and drops it in `release`.
    Lengths and budgets come as tensors, and in vLLM nothing may wait for the device: no answer's shape may depend on
    data. `observe` and `select_step` are recorded in CUDA graphs there, so they allocate nothing that outlives them and
    write into what `reserve` allocated.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """What its drafts read, in a few words: for help, the banner and tables."""
    speculates: ClassVar[bool] = True
    """False for plain decoding."""
    selects: ClassVar[bool] = True
    """False if drafts read everything, so that a budget has no meaning."""
    scores: ClassVar[bool] = False
    """Whether verification collects scores for it, those of `score_request`."""
    per_step: ClassVar[bool] = False
    """Whether each draft step selects anew, by `select_step`; `select` is not asked then."""
    keeps_queries: ClassVar[bool] = False
    """Whether it wants the verified rows' queries in the last layer, to score by a pass of its own."""
    bound: ClassVar[bool] = False
    """Whether it shows what others could reach at best, rather than being a way to decode faster."""
    in_vllm: ClassVar[bool] = True
    """Whether the plugin can draft with it."""

    def __init__(self, config: VegasConfig) -> None:
        self.config = config

    @property
    def score_request(self) -> ScoreRequest | None:
        """What verification shall collect; None for nothing."""
        return ScoreRequest.of(self.config) if self.scores else None

    @property
    def sets(self) -> Literal["kv_head", "layer", "model"]:
        """How many sets of positions an answer has at most: one per KV head of each layer, per layer, or one in all."""
        return "kv_head"

    def most_entries(self, budget: int) -> int:
        """Most entries of a prefix that a draft step reads with this budget."""
        return budget

    def num_entries(self, prefix_len: Count, budget: Count) -> Count:
        """How many entries of its prefix each request's draft step reads, if the policy selects `per_step`."""
        return budget

    def reserve(self, room: Room) -> None:
        """Allocate what is kept through a run; told again, with more room, when the cache turns out to be larger."""
        return

    @property
    def num_bytes(self) -> int:
        """Device memory of what `reserve` allocated."""
        return 0

    def observe(self, layer: int, keys: KeyView, places: Tensor) -> None:
        """See keys that verified rows or a prompt have just written in a layer.

        Parameters
        ----------
        layer : int
            Place among the layers with full attention.
        keys : KeyView
            The layer's; only `KeyView.pages` may be asked for.
        places : Tensor
            Where they stand, int64, one-dimensional; negative for none. Those of drafts that are rejected are written
            over later, and seen again then.

        """
        return

    @abstractmethod
    def select(self, verified: Verified) -> Tensor | None:
        """Prefix positions that the next draft reads in every layer with full attention; None for all of them.

        What came since the prefix (accepted tokens, drafts so far) is always read and is not part of the answer.

        Returns
        -------
        Tensor or None
            Int64, shape ``[layers or 1, batch, groups, width]``, ascending, padded with
            `vegas_spec.selection.NO_POSITION`; a size of 1 stands for all layers, or all KV heads. A request has as
            many in each of them.

        """

    def select_step(self, layer: int, drafting: Drafting) -> Tensor:
        """Prefix positions that one draft step reads in one layer, if the policy selects `per_step`.

        Parameters
        ----------
        layer : int
            Place among the layers with full attention.
        drafting : Drafting
            The step's own queries, and all keys there are.

        Returns
        -------
        Tensor
            Int64, shape ``[batch, groups, width]``: ``num_entries(prefix_lens[b], budgets[b])`` positions, ascending,
            then `vegas_spec.selection.NO_POSITION`; one group stands for all KV heads.

        """
        raise TypeError(f"policy {self.name} selects once per iteration")

    def release(self, slot: int) -> None:
        """Forget the request of a slot: it has ended, or its context was read or decoded without this policy since."""
        return
