"""The questions that a draft policy answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vegas_spec.config import Granularity, Rows, Score, VegasConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ScoreRequest:
    """Which scores a verification collects for the policy, in the terms of `VegasConfig`."""

    rows: Rows
    score: Score
    granularity: Granularity


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
class Verified:
    """What a policy may look at after a verification: one entry per request of its batch, layers those with full
    attention.

    Attributes
    ----------
    slots : sequence of int
        The requests' places in the cache; a request keeps its own to its end, then `Policy.release` is told.
    prefix_lens : sequence of int
        Positions ``[0, prefix_lens[b])`` may be selected. Their keys are final: no later step changes them.
    num_accepted : sequence of int
        Drafts accepted by this verification.
    keys : sequence of Tensor
        Per layer, the cache's keys, shape ``[slots, num_kv_heads, length, head_dim]``; exact in the prefix and for the
        accepted drafts.
    scores : Tensor or None
        What `Policy.score_request` asked for, float32, shape ``[layers, batch, groups, keys]``, groups being KV heads
        or 1.
    queries : sequence of Queries or None
        The verified rows' queries in the last layer, if `Policy.keeps_queries`.

    """

    slots: Sequence[int]
    prefix_lens: Sequence[int]
    num_accepted: Sequence[int]
    keys: Sequence[Tensor]
    scores: Tensor | None = None
    queries: Sequence[Queries] | None = None


@dataclass(frozen=True)
class Drafting:
    """What one layer of a draft step computes with: one row per request.

    Attributes
    ----------
    slots : sequence of int
        The requests' places in the cache.
    prefix_lens : sequence of int
        Positions ``[0, prefix_lens[b])`` may be selected; what came since is read anyway.
    seq_lens : sequence of int
        Keys that a dense step would read, the row's own included.
    queries : Queries
        The rows of all requests, shape ``[num_query_heads, batch, head_dim]``.
    keys : Tensor
        The cache's, shape ``[slots, num_kv_heads, length, head_dim]``; those since the prefix may be drafts'.

    """

    slots: Sequence[int]
    prefix_lens: Sequence[int]
    seq_lens: Sequence[int]
    queries: Queries
    keys: Tensor


class Policy(ABC):
    """Chooses the KV entries that drafting reads.

    Three questions: which logits it wants from verification (`score_request`, `keeps_queries`), which positions each
    layer's draft may read (`select`), and whether that changes from one draft step to the next (`per_step`,
    `select_step`). Cache, attention, sampling and measurements are the engine's, the same for all.

    An object serves one run: a policy that remembers something keys it by request slot and drops it in `release`.
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
    """Whether each draft step selects anew, by `select_step`; `select` then returns None."""
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
        if not self.scores:
            return None
        return ScoreRequest(self.config.rows, self.config.score, self.config.granularity)

    def num_entries(self, prefix_len: int) -> int:
        """Most entries of a prefix that a draft step reads; exactly so many if the policy selects `per_step`."""
        return self.config.budget(prefix_len)

    @abstractmethod
    def select(self, verified: Verified) -> Tensor | None:
        """Prefix positions that the next draft reads in every layer with full attention; None for all of them.

        What came since the prefix (accepted tokens, drafts so far) is always read and is not part of the answer.

        Returns
        -------
        Tensor or None
            Int64, shape ``[layers or 1, batch, groups, k]``, ascending, padded with `vegas_spec.selection.NO_POSITION`;
            a size of 1 stands for all layers, or all KV heads. A request has as many in each of them.

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
            Int64, shape ``[batch, groups, k]``: ``num_entries(prefix_lens[b])`` positions, ascending, then
            `vegas_spec.selection.NO_POSITION`; one group stands for all KV heads.

        """
        raise TypeError(f"policy {self.name} selects once per iteration")

    def release(self, slot: int) -> None:
        """Forget the request of a slot: it has ended, and another one may take its place."""
        return
