"""From logits to the distribution that a request samples from, for drafting and verification alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.rejection import draw

# Nearly always the nucleus lies within the likeliest tokens; a full sort of a 150,000-token vocabulary costs ten times
# as much as finding them.
_NUCLEUS_GUESS = 1024


class Sampler:
    """The sampling state of one request: its options, its randomness and what it has said so far."""

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int], seed: int) -> None:
        self.params = params
        self._random = torch.Generator().manual_seed(seed)
        self._prompt = set(prompt_token_ids)
        self._output_counts: dict[int, int] = {}

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens into the history that penalties look at."""
        for token in tokens:
            self._output_counts[token] = self._output_counts.get(token, 0) + 1

    def uniforms(self, count: int) -> Tensor:
        """Draw `count` float64 numbers in ``[0, 1)`` from the request's own generator."""
        return torch.rand(count, generator=self._random, dtype=torch.float64)

    def penalised(self, logits: Tensor, drafts: Sequence[int], first: int = 0) -> Tensor:
        """Apply the penalties; row ``i`` has the history of the output followed by ``drafts[:first + i]``.

        Parameters
        ----------
        logits : Tensor
            Floating, shape ``[rows, vocab]``, with ``first + rows <= len(drafts) + 1``.
        drafts : sequence of int
            Tokens drafted after the output.
        first : int
            Drafts that already precede the first row.

        Returns
        -------
        Tensor
            Float32, shape ``[rows, vocab]``.

        """
        logits = logits.float()
        if not self.params.has_penalties:
            return logits
        logits = logits.clone()
        counts = dict(self._output_counts)
        for row in range(first + logits.shape[0]):
            if row:
                counts[drafts[row - 1]] = counts.get(drafts[row - 1], 0) + 1
            if row >= first:
                self._penalise(logits[row - first], counts)
        return logits

    def _penalise(self, row: Tensor, counts: dict[int, int]) -> None:
        params = self.params
        if params.repetition_penalty != 1:
            seen = torch.tensor(sorted(self._prompt | counts.keys()), dtype=torch.int64, device=row.device)
            value = row[seen]
            penalty = params.repetition_penalty
            row[seen] = torch.where(value > 0, value / penalty, value * penalty)
        if counts:
            said = torch.tensor(list(counts), device=row.device)
            times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
            row[said] -= params.frequency_penalty * times + params.presence_penalty

    def distribution(self, logits: Tensor, drafts: Sequence[int], first: int = 0) -> Tensor:
        """Give the distribution that the next token is drawn from, for every row; arguments as in `penalised`."""
        params = self.params
        logits = self.penalised(logits, drafts, first) / params.temperature
        if params.min_p > 0:
            logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(params.min_p), -torch.inf)
        if 0 < params.top_k < logits.shape[-1]:
            kth = torch.topk(logits, params.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        probs = torch.softmax(logits, dim=-1)
        return probs if params.top_p >= 1 else _nucleus(probs, params.top_p)

    def choose(self, logits: Tensor, drafts: Sequence[int]) -> tuple[int, Tensor | None]:
        """Choose the token that follows the output and ``drafts`` from logits of shape ``[vocab]``.

        Returns
        -------
        (int, Tensor or None)
            The token and the distribution it was drawn from, shape ``[vocab]``; None when it was chosen, not drawn.

        """
        if self.params.greedy:
            return int(self.penalised(logits[None], drafts, len(drafts)).argmax()), None
        probs = self.distribution(logits[None], drafts, len(drafts))
        return int(draw(probs, self.uniforms(1).to(probs.device))), probs[0]


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the fewest likeliest tokens whose probabilities sum to at least `top_p`, renormalised."""
    guess = min(_NUCLEUS_GUESS, probs.shape[-1])
    values, tokens = torch.topk(probs, guess, dim=-1)
    if bool((values.sum(-1) < top_p).any()):
        values, tokens = torch.sort(probs, dim=-1, descending=True)
    before = values.cumsum(-1) - values
    values = values.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probs).scatter(-1, tokens, values)
    return kept / kept.sum(-1, keepdim=True)
