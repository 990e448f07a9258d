"""The questions that a draft policy answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vegas_spec.config import Granularity, Rows, Score, VegasConfig


@dataclass(frozen=True)
class ScoreRequest:
    """Which scores a verification collects for the policy, in the terms of `VegasConfig`."""

    rows: Rows
    score: Score
    granularity: Granularity


class Policy(ABC):
    """Chooses the KV entries that drafting reads.

    A policy only answers questions: cache, kernels, sampling and measurements are the engine's, the same for all.
    """

    name: ClassVar[str]
    speculates: ClassVar[bool] = True
    """False for plain decoding."""

    def __init__(self, config: VegasConfig) -> None:
        self.config = config

    @property
    def score_request(self) -> ScoreRequest | None:
        """What verification shall collect; None for nothing."""
        return None

    @abstractmethod
    def select(self, scores: Tensor | None, prefix_lens: Tensor) -> Tensor | None:
        """Prefix positions that the next draft reads in every layer with full attention; None for all of them.

        What came since the prefix (accepted tokens, drafts so far) is always read and is not part of the answer.

        Parameters
        ----------
        scores : Tensor or None
            What `score_request` asked for, shape ``[layers, batch, groups, keys]``, groups being KV heads or 1.
        prefix_lens : Tensor
            Tokens of the prefix per request, integer, shape ``[batch]``.

        Returns
        -------
        Tensor or None
            Int64, shape ``[layers, batch, groups, k]``, ascending, padded with `vegas_spec.selection.NO_POSITION`.

        """
