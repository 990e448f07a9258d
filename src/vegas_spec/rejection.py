"""Lossless acceptance of drafted tokens: the definition.

Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318). Randomness comes in
as uniform numbers, so every function is pure: the same numbers give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NO_TOKEN = -1
"""Fills the unused end of a row of tokens."""


@dataclass(frozen=True)
class Acceptance:
    """What one verification decided, for every request of a batch.

    Attributes
    ----------
    num_accepted : Tensor
        Drafts accepted, ``a``, int64, shape ``[batch]``.
    tokens : Tensor
        The ``a + 1`` committed tokens (accepted drafts, then the correction or the bonus), then `NO_TOKEN`; int64,
        shape ``[batch, gamma + 1]``.

    """

    num_accepted: Tensor
    tokens: Tensor


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index per row with probability proportional to its weight, by inverting the cumulative sum.

    Parameters
    ----------
    weights : Tensor
        Non-negative, not all zero in a row, shape ``[..., vocab]``.
    uniforms : Tensor
        In ``[0, 1)``, shape ``[...]``.

    Returns
    -------
    Tensor
        Int64, shape ``[...]``; an index of weight zero is never drawn.

    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1:].contiguous()
    index = torch.searchsorted(cumulative, uniforms.double()[..., None] * total, right=True)
    # u * total can round up to total; the first index that reaches total is the last one of positive weight.
    last = torch.searchsorted(cumulative, total)
    return index.minimum(last).squeeze(-1)


def accept_greedy(draft_tokens: Tensor, target_tokens: Tensor, num_drafts: Tensor) -> Acceptance:
    """Accept drafts while they are the target's own choice.

    Parameters
    ----------
    draft_tokens : Tensor
        ``d[1..gamma]``, integer, shape ``[batch, gamma]``; entries from ``num_drafts`` on are ignored.
    target_tokens : Tensor
        ``argmax p[i]`` for ``i = 0..gamma``, integer, shape ``[batch, gamma + 1]``.
    num_drafts : Tensor
        ``m <= gamma`` drafts per request, integer, shape ``[batch]``.

    """
    gamma = draft_tokens.shape[1]
    column = torch.arange(gamma + 1, device=draft_tokens.device)
    agrees = (draft_tokens == target_tokens[:, :gamma]) & (column[:gamma] < num_drafts[:, None])
    num_accepted = agrees.long().cumprod(1).sum(1)
    tokens = target_tokens.long().masked_fill(column > num_accepted[:, None], NO_TOKEN)
    return Acceptance(num_accepted, tokens)


def accept(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, num_drafts: Tensor, uniforms: Tensor
) -> Acceptance:
    """Accept ``d[i]`` with probability ``min(1, p[i-1](d[i]) / q[i](d[i]))``; correct or extend so that the law is p's.

    At the first rejection, ``i``, the committed token is drawn from ``max(p[i-1] - q[i], 0)``, normalised; if all are
    accepted the bonus token is drawn from ``p[m]``. Whatever q is, the committed tokens are distributed as p, provided
    that q is the very distribution each draft was drawn from.

    Parameters
    ----------
    draft_tokens : Tensor
        ``d[1..gamma]``, integer, shape ``[batch, gamma]``; entries from ``num_drafts`` on are ignored.
    draft_probs : Tensor or None
        ``q[1..gamma]``, shape ``[batch, gamma, vocab]``, kept from the draft; None if the drafts were not drawn but
        chosen, which is a q of one on the draft.
    target_probs : Tensor
        ``p[0..gamma]``, shape ``[batch, gamma + 1, vocab]``.
    num_drafts : Tensor
        ``m <= gamma`` drafts per request, integer, shape ``[batch]``.
    uniforms : Tensor
        In ``[0, 1)``, shape ``[batch, gamma + 1]``: one for each draft's test, the last for the drawn token.

    """
    batch, gamma = draft_tokens.shape
    column = torch.arange(gamma + 1, device=draft_tokens.device)
    is_draft = column[:gamma] < num_drafts[:, None]
    drafts = draft_tokens.long().masked_fill(~is_draft, 0)
    p = target_probs[:, :gamma].gather(-1, drafts[..., None]).squeeze(-1).double()
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, drafts[..., None]).squeeze(-1).double()
    passes = (uniforms[:, :gamma].double() * q < p) & is_draft
    num_accepted = passes.long().cumprod(1).sum(1)

    row = torch.arange(batch, device=draft_tokens.device)
    weights = target_probs[row, num_accepted].double()
    rejected = num_accepted < num_drafts
    if gamma:
        at = num_accepted.clamp(max=gamma - 1)
        if draft_probs is None:
            q_row = torch.zeros_like(weights).scatter(-1, drafts[row, at][:, None], 1.0)
        else:
            q_row = draft_probs[row, at].double()
        residual = (weights - q_row).clamp(min=0)
        # Only rounding can reject where p and q are equal; p itself is then the right law.
        usable = rejected & (residual.sum(-1) > 0)
        weights = torch.where(usable[:, None], residual, weights)
    token = draw(weights, uniforms[:, gamma])

    padded = torch.cat([drafts, drafts.new_zeros(batch, 1)], dim=1)
    tokens = torch.where(column < num_accepted[:, None], padded, token[:, None])
    return Acceptance(num_accepted, tokens.masked_fill(column > num_accepted[:, None], NO_TOKEN))
