"""When drafting cannot gain, do not draft: the rule, by the cost model of bytes that a decode step reads.

Decoding is bound by memory. A plain step reads the weights and every request's context; a draft step reads the weights
and the budget of every context; both pay for starting their kernels. With ``a`` drafts accepted of ``gamma``, drafting
gains

    (a + 1) * plain / (1.08 * plain + gamma * draft)

over plain decoding, 1.08 being a verification that scores and selects. ``a`` is a running mean of what was accepted.
Drafting is given up where the gain is below 1, and taken up again where it is above 1.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vegas_spec.config import VegasConfig
from vegas_spec.vllm.memory import cache_itemsize

VERIFY_COST = 1.08
SUSPEND_BELOW, RESUME_ABOVE = 1.0, 1.1
EXPECTED_ACCEPTANCE = 0.7
"""Share of the drafts that is expected to be accepted before any was seen."""

LAYER_BYTES = 128 * 2**20
"""What starting a layer's kernels costs, in bytes that could have been read: about 30 us at an H200's 4.27 TB/s."""


@dataclass(frozen=True)
class Cost:
    """What one forward pass of a rank reads.

    Attributes
    ----------
    fixed : float
        Bytes that every pass reads or could have read: weights, and the start of its kernels.
    per_token : float
        Bytes of K and V per token of context, over the layers with full attention.

    """

    fixed: float
    per_token: float

    @classmethod
    def estimate(cls, vllm_config: Any) -> Cost:
        """Estimate from the model's shape; of a mixture of experts, the weights that a full batch touches."""
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        hf = model.hf_text_config
        ranks, hidden, layers = parallel.tensor_parallel_size, hf.hidden_size, hf.num_hidden_layers
        heads, kv_heads = model.get_num_attention_heads(parallel), model.get_num_kv_heads(parallel)
        head_dim, itemsize = model.get_head_size(), model.dtype.itemsize
        experts = getattr(hf, "num_local_experts", None) or getattr(hf, "num_experts", None) or 0
        intermediate = (experts and getattr(hf, "moe_intermediate_size", None)) or hf.intermediate_size
        active = 1.0
        if experts:
            missed = (1 - hf.num_experts_per_tok / experts) ** vllm_config.scheduler_config.max_num_seqs
            active = experts * (1 - missed)
        per_layer = hidden * head_dim * 2 * (heads + kv_heads) + active * 3 * hidden * intermediate / ranks
        weights = layers * per_layer * _bytes_per_weight(model.quantization, itemsize)
        head = model.get_vocab_size() * hidden * itemsize / ranks
        kinds = getattr(hf, "layer_types", None) or ["full_attention"] * layers
        full = sum(kind == "full_attention" for kind in kinds)
        per_token = full * kv_heads * head_dim * 2 * cache_itemsize(vllm_config)
        return cls(weights + head + layers * LAYER_BYTES, per_token)


def _bytes_per_weight(quantization: str | None, itemsize: int) -> float:
    if quantization is None:
        return itemsize
    return 1.0 if "8" in quantization else 0.6


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
        share = 1.0 if drafting is None else drafting / len(contexts)
        read = sum(self.config.budget(length) for length in contexts)
        plain = self.cost.fixed + self.cost.per_token * sum(contexts)
        draft = self.cost.fixed + self.cost.per_token * read
        iteration = VERIFY_COST * plain + self.config.num_speculative_tokens * draft
        return (share * self.accepted + 1) * plain / iteration

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
