"""Top-k, top-p and min-p on the draft's side: what the target cuts off should not be drafted.

vLLM's drafters know a request's temperature only. With top-p 0.8 a fifth of such drafts is rejected for being outside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vegas_spec.ops import truncate_logits


class Truncation:
    """The parameters of all requests, in tensors that keep their addresses for the draft's CUDA graphs.

    Parameters
    ----------
    sampling_states : SamplingStates
        Of vLLM's sampler.
    device : torch.device
        Where the model runs.

    """

    def __init__(self, sampling_states: Any, device: torch.device) -> None:
        self.states = sampling_states
        size, vocab_size = sampling_states.max_num_reqs, sampling_states.vocab_size
        self.top_k = torch.full((size,), vocab_size, dtype=torch.int32, device=device)
        self.top_p = torch.ones(size, dtype=torch.float32, device=device)
        self.min_p = torch.zeros(size, dtype=torch.float32, device=device)
        self.wanted = False
        """Whether a request of the latest batch asks for any; if not, the tensors say so for all."""

    def prepare(self, requests: Any) -> None:
        """Before a draft: take over the parameters of these requests (indices of vLLM's states, NumPy).

        What is looked at on the host are vLLM's own copies there.
        """
        states = self.states
        wanted = bool(
            (states.top_k.np[requests] != states.vocab_size).any()
            or (states.top_p.np[requests] != 1).any()
            or (states.min_p.np[requests] != 0).any()
        )
        if wanted:
            self.top_k.copy_(states.top_k.gpu)
            self.top_p.copy_(states.top_p.gpu)
            self.min_p.copy_(states.min_p.gpu)
        elif self.wanted:
            self.top_k.fill_(states.vocab_size)
            self.top_p.fill_(1)
            self.min_p.zero_()
        self.wanted = wanted

    def apply(self, logits: Tensor, requests: Tensor, temperature: Tensor) -> None:
        """Mask the draft's logits in place; row ``b`` is of the request that stands at ``requests[b]``, if any."""
        truncate_logits(logits, requests, temperature, self.top_k, self.top_p, self.min_p)
