"""From logits to the distribution that a request samples from, for drafting and verification alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from vegas_spec.engine.sampling_params import SamplingParams
from vegas_spec.rejection import draw

# Nearly always the nucleus lies within the likeliest tokens; a full sort of a 150,000-token vocabulary costs ten times
# as much as finding them (by hand: where more are needed, all are sorted).
_NUCLEUS_GUESS = 1024


class Sampler:
    """The sampling state of one request: its options, its randomness and what it has said so far.

    Parameters
    ----------
    params : SamplingParams
        The request's options.
    prompt_token_ids : sequence of int
        Its prompt, for the repetition penalty.
    seed : int
        Of its randomness.
    stop_token_ids : collection of int
        What ends the output, held back for ``min_tokens``.
    bad_words : sequence of sequences of int
        Token ids of what must not be said.

    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        seed: int,
        stop_token_ids: Collection[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
    ) -> None:
        self.params = params
        self._random = torch.Generator().manual_seed(seed)
        self._said: list[int] = []
        self._stops = sorted(stop_token_ids)
        self._bad_words = bad_words
        self._history = History(prompt_token_ids) if params.has_penalties else None
        self._nothing_to_do = not (
            self._history or bad_words or params.logit_bias or params.allowed_token_ids is not None
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens into the history that penalties look at."""
        self._said += tokens
        if self._history is not None:
            self._history.add(tokens)

    def uniforms(self, count: int) -> Tensor:
        """Draw `count` float64 numbers in ``[0, 1)`` from the request's own generator."""
        return torch.rand(count, generator=self._random, dtype=torch.float64)

    def penalised(self, logits: Tensor, drafts: Sequence[int], first: int = 0) -> Tensor:
        """Apply what comes before temperature; row ``i`` has the history of the output and ``drafts[:first + i]``.

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
        params, held_back = self.params, self.params.min_tokens - len(self._said) - first
        if self._nothing_to_do and held_back <= 0:
            return logits.float()
        logits = logits.to(torch.float32, copy=True)
        if params.allowed_token_ids is not None:
            allowed = list(params.allowed_token_ids)
            kept = logits[:, allowed]
            logits.fill_(-torch.inf)[:, allowed] = kept
        if params.logit_bias:
            logits[:, list(params.logit_bias)] += logits.new_tensor(list(params.logit_bias.values()))
        if held_back > 0 and self._stops:
            logits[:held_back, self._stops] = -torch.inf
        if self._history is not None:
            self._history.penalise(logits, drafts[: first + len(logits) - 1], first, params)
        if self._bad_words:
            before = [*self._said[-max(map(len, self._bad_words)) :], *drafts]
            for row in range(len(logits)):
                end = len(before) - len(drafts) + first + row
                for *start, last in self._bad_words:
                    if len(start) <= end and before[end - len(start) : end] == start:
                        logits[row, last] = -torch.inf
        return logits

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


class History:
    """Tokens of a prompt and its output, and how often the output has them; grows by what is committed.

    ``tokens`` are the different ones, int64, and ``times`` says how often the output has each, float32.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._times = dict.fromkeys(prompt_token_ids, 0)
        self._places = {token: place for place, token in enumerate(self._times)}
        self._new: dict[int, None] = {}
        """Tokens whose count has changed since ``tokens`` and ``times`` were made."""
        self.tokens = torch.tensor(list(self._times), dtype=torch.int64)
        self.times = torch.zeros(len(self._times))

    def add(self, tokens: Sequence[int]) -> None:
        """Take tokens of the output into account."""
        for token in tokens:
            self._times[token] = self._times.get(token, 0) + 1
            self._new[token] = None

    def penalise(self, logits: Tensor, drafts: Sequence[int], first: int, params: SamplingParams) -> None:
        """Change logits in place; row ``i`` sees the history followed by ``drafts[:first + i]``."""
        self._catch_up(logits.device)
        original = logits[:, drafted] if (drafted := sorted(set(drafts))) else None
        logits[:, self.tokens] = _penalised(logits[:, self.tokens], self.times, params)
        if original is None:
            return
        # Tokens of the drafts again, from the start: how often they have been said differs from row to row.
        known = [self._times.get(token, -1) for token in drafted]
        counts = [[drafts[: first + row].count(token) for token in drafted] for row in range(len(logits))]
        times = logits.new_tensor(counts) + logits.new_tensor([max(count, 0) for count in known])
        seen = (times > 0) | torch.tensor([count >= 0 for count in known], device=logits.device)
        logits[:, drafted] = torch.where(seen, _penalised(original, times, params), original)

    def _catch_up(self, device: torch.device) -> None:
        """Bring the tensors up to date; only what is new is made from lists."""
        fresh = [token for token in self._new if token not in self._places]
        for token in fresh:
            self._places[token] = len(self._places)
        self.tokens, self.times = self.tokens.to(device), self.times.to(device)
        if fresh:
            self.tokens = torch.cat([self.tokens, torch.tensor(fresh, device=device)])
            self.times = torch.cat([self.times, self.times.new_zeros(len(fresh))])
        if self._new:
            places = torch.tensor([self._places[token] for token in self._new], device=device)
            self.times[places] = self.times.new_tensor([self._times[token] for token in self._new])
            self._new.clear()


def _penalised(logits: Tensor, times: Tensor, params: SamplingParams) -> Tensor:
    """Penalise logits of tokens that were seen, and that the output has `times` times."""
    penalty = params.repetition_penalty
    logits = torch.where(logits > 0, logits / penalty, logits * penalty)
    return logits - (params.frequency_penalty * times + params.presence_penalty * (times > 0))
