"""What an iteration costs: the cost model, which predicts, and the times that take its place once they are measured.

With ``gamma`` drafts, of which ``a`` are accepted, an iteration commits ``a + 1`` tokens and takes

    iteration(gamma) = verify + select + gamma * (draft + row)      iteration(0) = plain

so the speed-up over plain decoding is ``(a + 1) * plain / iteration(gamma)``. Decoding is bound by memory: with ``W``
bytes of weights, ``K`` bytes of keys and values in all contexts, ``k`` of them read by a draft step, ``B`` requests
that draft and ``L`` layers, in the bytes that could have been read meanwhile,

    plain  = W + L * layer + K        select = scoring * K
    verify = plain                    row    = row_share * W * B
    draft  = W + L * (layer + draft_layer) + k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vegas_spec.config import VegasConfig


@dataclass(frozen=True)
class Overheads:
    """What a step takes beside reading weights, keys and values; nothing unless said.

    Attributes
    ----------
    layer, draft_layer : float
        Bytes that could be read while a layer's kernels are started; what a draft step's attention adds to that.
    scoring : float
        What scores and selection add to a verification's attention, as a share of reading K.
    row_share : float
        What a drafted row adds to the products of a verification, as a share of reading the weights.

    """

    layer: float = 0.0
    draft_layer: float = 0.0
    scoring: float = 0.0
    row_share: float = 0.0


H200 = Overheads(layer=100 * 2**20, draft_layer=50 * 2**20, scoring=0.1, row_share=0.01)
"""One H200 (4.27 TB/s: a layer takes 25 us to start, a draft's attention 12 us), vLLM 0.33.0, torch 2.11, 2026-11-30.

With them the model gives the steps of ``benchmarks/results/vllm_decode_8b.json`` and ``vllm_decode_1.5b.json`` at long
contexts to 20 %. On other hardware they are where the scheduler begins, until its own times are known.
"""


@dataclass(frozen=True)
class Costs:
    """Time of the parts of an iteration, in any one unit.

    Attributes
    ----------
    plain : float
        A step of plain decoding.
    verify, select : float
        Verification without scores; what scores and selection add.
    draft : float
        One draft step.
    row : float
        What one more draft of every request adds to verification.

    """

    plain: float
    verify: float
    draft: float
    select: float = 0.0
    row: float = 0.0

    def iteration(self, gamma: int) -> float:
        """Time of an iteration."""
        return self.verify + self.select + gamma * (self.draft + self.row) if gamma else self.plain

    def per_token(self, gamma: int, accepted: float) -> float:
        """Time per committed token when, of `gamma` drafts, `accepted` are accepted per iteration."""
        return self.iteration(gamma) / (accepted + 1)

    def speedup(self, gamma: int, accepted: float) -> float:
        """Throughput over that of plain decoding."""
        return self.plain / self.per_token(gamma, accepted)


@dataclass(frozen=True)
class CostModel:
    """What a model's steps read (one rank's share of it), and so what they cost.

    Attributes
    ----------
    weights : float
        Bytes of weights that a step reads.
    per_token : float
        Bytes of K and V per token of context, over the layers with full attention.
    layers : int
        Of the model.
    overheads : Overheads
        None: the floors of a memory-bound decoder.

    """

    weights: float
    per_token: float
    layers: int = 0
    overheads: Overheads = H200

    def costs(self, tokens: float, read: float, drafting: int = 0) -> Costs:
        """Costs of a batch, in bytes.

        Parameters
        ----------
        tokens, read : float
            Of all contexts together; of those, what a draft step reads.
        drafting : int
            Requests that draft.

        """
        over, kv = self.overheads, self.per_token * tokens
        fixed = self.weights + self.layers * over.layer
        draft = fixed + self.layers * over.draft_layer + self.per_token * read
        return Costs(fixed + kv, fixed + kv, draft, over.scoring * kv, over.row_share * self.weights * drafting)

    def of_batch(self, config: VegasConfig, contexts: Sequence[int], drafting: int) -> Costs:
        """Costs of a batch whose drafts read what `config` says, by the tokens of each of its requests."""
        lengths = np.array(contexts, dtype=np.int64)
        return self.costs(int(lengths.sum()), int(config.budget(lengths).sum()), drafting)
