"""When drafting cannot gain, do not draft: the rule, by the cost model of bytes that a step reads.

Decoding is bound by memory. With ``W`` bytes of weights, ``K`` bytes of keys and values in all contexts, ``k`` of them
in their budgets, ``B`` requests that use their drafts and ``L`` layers,

    plain  = W + L * LAYER_BYTES + K
    verify = W + L * LAYER_BYTES + VERIFY_KV * K + ROW_COST * W * gamma * B
    draft  = W + L * (LAYER_BYTES + DRAFT_LAYER_BYTES) + k

where what takes time without reading is said in the bytes that could have been read. With ``a`` drafts accepted of
``gamma``, a running mean, drafting gains

    (a + 1) * plain / (verify + gamma * draft)

over plain decoding. It is given up where the gain is below 1, and taken up again where it is above 1.1.

The constants are of one H200 (4.27 TB/s), vLLM 0.33.0, torch 2.11, 2026-11-30: they give the steps that
``benchmarks/results/vllm_decode_8b.json`` and ``vllm_decode_1.5b.json`` measured at long contexts to 20 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vegas_spec.config import VegasConfig

VERIFY_KV = 1.1
"""Attention that scores and selects, over attention alone."""

ROW_COST = 0.01
"""What a drafted row adds to the products of a verification, as a share of reading the weights."""

LAYER_BYTES = 100 * 2**20
"""Starting a layer's kernels, about 25 us."""

DRAFT_LAYER_BYTES = 50 * 2**20
"""What a draft step's attention takes beside its bytes, per layer, about 12 us."""

SUSPEND_BELOW, RESUME_ABOVE = 1.0, 1.1
EXPECTED_ACCEPTANCE = 0.7
"""Share of the drafts that is expected to be accepted before any was seen."""


@dataclass(frozen=True)
class Cost:
    """What a rank's steps read.

    Attributes
    ----------
    weights : float
        Bytes of weights that a step reads.
    per_token : float
        Bytes of K and V per token of context, over the layers with full attention.
    layers : int
        Of the model.

    """

    weights: float
    per_token: float
    layers: int = 0

    def plain(self, tokens: int) -> float:
        """Cost of a plain step over contexts of so many tokens in all."""
        return self.weights + self.layers * LAYER_BYTES + self.per_token * tokens

    def verify(self, tokens: int, drafted: int) -> float:
        """Cost of a verification of so many drafted tokens in all."""
        scoring = (VERIFY_KV - 1) * self.per_token * tokens
        return self.plain(tokens) + scoring + ROW_COST * self.weights * drafted

    def draft(self, tokens: int) -> float:
        """Cost of a draft step that reads so many tokens in all."""
        return self.plain(tokens) + self.layers * DRAFT_LAYER_BYTES


def entries_read(config: VegasConfig, contexts: Sequence[int]) -> int:
    """Sum `VegasConfig.budget` over contexts, all at once: the scheduler asks at every step, for every request."""
    return int(config.budget(np.array(contexts, dtype=np.int64)).sum())


class FallBack:
    """Decides, step by step, whether the next draft is worth its cost."""

    def __init__(self, config: VegasConfig, cost: Cost) -> None:
        self.config = config
        self.cost = cost
        self.accepted = EXPECTED_ACCEPTANCE * config.num_speculative_tokens
        self.drafting = True

    def observe(self, accepted: int) -> None:
        """Take note of one request's verification."""
        self.accepted += 0.01 * (accepted - self.accepted)

    def gain(self, contexts: Sequence[int], drafting: int | None = None) -> float:
        """Throughput with drafting over throughput without, for requests of these lengths.

        ``drafting`` of them use their drafts, all unless said otherwise; the others are run along.
        """
        drafting = len(contexts) if drafting is None else drafting
        gamma = self.config.num_speculative_tokens
        tokens, read = sum(contexts), entries_read(self.config, contexts)
        iteration = self.cost.verify(tokens, gamma * drafting) + gamma * self.cost.draft(read)
        return (self.accepted * drafting / len(contexts) + 1) * self.cost.plain(tokens) / iteration

    def decide(self, contexts: Sequence[int], drafting: int | None = None) -> bool:
        """Whether to draft for requests of these lengths, ``drafting`` of which (all, if None) use their drafts.

        They may be none.
        """
        if not contexts:
            return self.drafting
        gain = self.gain(contexts, drafting)
        if self.drafting:
            self.drafting = gain >= SUSPEND_BELOW
        else:
            # What is not tried is not seen: slowly expect again what was expected at first.
            expected = EXPECTED_ACCEPTANCE * self.config.num_speculative_tokens
            self.accepted += 0.001 * (expected - self.accepted)
            self.drafting = gain > RESUME_ABOVE
        return self.drafting

    def shortest_gaining_context(self, batch: int) -> float:
        """Context from which drafting for a batch of equal requests starts to gain; infinite if never."""
        low, high = 1, 2**24
        if self.gain([high] * batch) <= RESUME_ABOVE:
            return math.inf
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.gain([middle] * batch) > RESUME_ABOVE else (middle + 1, high)
        return low
