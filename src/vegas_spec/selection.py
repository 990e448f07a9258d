"""From the logits that verification computed to the KV positions that the next draft reads: the definition.

Everything here is plain torch, vectorised over a ragged batch, and works in any floating dtype. Kernels are tested
against it. Source: Vegas (arXiv 2602.07223); ``docs/how-it-works.md`` has the same in prose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.config import Granularity, Score

NO_POSITION = -1
"""Fills the unused end of a row of positions."""

FIRST_POSITIONS = 16
"""Positions at the start that are kept where nothing was scored: they take much of the weight (arXiv 2309.17453).
How many was chosen by hand."""


def query_key_logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products before softmax and soft-cap: ``l[t, h, i] = scale * <q[t, h], k[i]>``.

    Parameters
    ----------
    query : Tensor
        Shape ``[num_query_heads, rows, head_dim]``.
    key : Tensor
        Shape ``[num_kv_heads, keys, head_dim]``.
    scale : float
        Of the products.

    Returns
    -------
    Tensor
        Of the query's dtype, shape ``[rows, num_query_heads, keys]``.

    """
    (heads, rows, dim), kv_heads = query.shape, key.shape[0]
    # Rows outermost within a KV head: it is the small operand that is brought into the order of the result.
    grouped = (query * scale).view(kv_heads, -1, rows, dim).transpose(1, 2).reshape(kv_heads, -1, dim)
    # A matrix product takes the keys as they lie; a batched one copies what is not contiguous.
    products = [torch.mm(head_rows, keys.t()) for head_rows, keys in zip(grouped, key, strict=True)]
    if kv_heads == 1:
        return products[0].view(rows, heads, -1)
    return torch.stack([product.view(rows, heads // kv_heads, -1) for product in products], dim=1).flatten(1, 2)


def score_rows(
    logits: Tensor,
    visible: Tensor | None,
    num_kv_heads: int,
    score: Score,
    granularity: Granularity,
    sinks: Tensor | None = None,
) -> Tensor:
    """Score every key by what the given query rows think of it.

    ``weight``: ``s[g, i] = sum_{t, h in g} exp(l[t, h, i] - lse[t, h])`` with
    ``lse[t, h] = log(sum_{i visible to t} exp(l[t, h, i]) + exp(sink[h]))``;
    ``logit``:  ``s[g, i] = sum_{t, h in g} l[t, h, i]`` over the rows that may see ``i``.
    ``g`` is a KV head with the query heads that share it, or the whole layer (arXiv 2602.07223; `VegasConfig.score`).

    Parameters
    ----------
    logits : Tensor
        Scaled query-key products before softmax (and before a soft-cap), shape ``[rows, num_query_heads, keys]``.
    visible : Tensor or None
        Whether row ``t`` may see key ``i``, bool, shape ``[rows, keys]``. None if logits of keys that a row may not
        see are ``-inf`` already; for ``logit`` such a key's score is then ``-inf``.
    num_kv_heads : int
        Query head ``h`` reads KV head ``h // (num_query_heads // num_kv_heads)``.
    score : {"weight", "logit"}
        What is summed.
    granularity : {"kv_head", "layer"}
        Over which heads it is summed.
    sinks : Tensor, optional
        A learnt logit per query head that takes weight but has no key, shape ``[num_query_heads]``.

    Returns
    -------
    Tensor
        Float32 (float64 for float64 logits), shape ``[num_kv_heads or 1, keys]``.

    """
    rows, heads, keys = logits.shape
    # Weights of half-precision logits stay in half precision (their own rounding is coarser); sums are float32.
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if score == "weight":
        if visible is not None:
            logits = logits.masked_fill(~visible[:, None, :], -torch.inf)
        if sinks is not None:
            column = sinks.to(logits)[None, :, None].expand(rows, heads, 1)
            logits = torch.cat([logits, column], dim=-1)
        per_row = torch.softmax(logits, dim=-1)[..., :keys]
    else:
        per_row = logits
        if visible is not None:
            per_row = per_row.masked_fill(~visible[:, None, :], 0.0)
    groups = num_kv_heads if granularity == "kv_head" else 1
    if groups == 1:
        return per_row.reshape(1, rows * heads, keys).sum(1, dtype=dtype)
    return per_row.view(rows, groups, heads // groups, keys).sum((0, 2), dtype=dtype)


def look_ahead(scores: Tensor, decay: float) -> Tensor:
    """Let every score flow to the keys that follow: ``m[i] = max(s[i], decay * m[i - 1])``.

    The next tokens want what comes after the keys that the last ones read, where a text copies, cites or retrieves.

    Parameters
    ----------
    scores : Tensor
        Not negative (softmax weights), shape ``[..., keys]``; a NaN counts as 0.
    decay : float
        In (0, 1).

    Returns
    -------
    Tensor
        ``max(decay**j * s[i - j] for 0 <= j <= i)``, of the same shape and dtype.

    """
    ahead = torch.where(scores == scores, scores, 0)
    # After each turn a score has flowed twice as far, until nothing is left of any.
    reach, factor = 1, decay
    while reach < scores.shape[-1] and factor > torch.finfo(scores.dtype).tiny:
        ahead = torch.cat([ahead[..., :reach], torch.maximum(ahead[..., reach:], factor * ahead[..., :-reach])], dim=-1)
        reach, factor = 2 * reach, factor * factor
    return ahead


def select_positions(scores: Tensor, prefix_lens: Tensor, counts: Tensor) -> Tensor:
    """Choose the ``counts[b]`` best-scored positions of ``[0, prefix_lens[b])``, for every request and group.

    Ties go to the larger position, so the result is the same on every run and every backend. A NaN counts as ``-inf``:
    it is chosen last.

    Parameters
    ----------
    scores : Tensor
        Floating, shape ``[..., batch, groups, keys]``; what lies at or beyond a request's prefix is ignored.
    prefix_lens, counts : Tensor
        Integer, shape ``[batch]``, with ``0 <= counts <= prefix_lens <= keys``.

    Returns
    -------
    Tensor
        Int64, shape ``[..., batch, groups, max(counts)]``: ascending positions, then `NO_POSITION`.

    """
    keys = scores.shape[-1]
    width = int(counts.max()) if counts.numel() else 0
    out = torch.full((*scores.shape[:-1], width), NO_POSITION, dtype=torch.int64, device=scores.device)
    if width == 0:
        return out
    in_prefix = torch.arange(keys, device=scores.device) < prefix_lens[:, None, None]
    # A NaN equals nothing, itself included.
    scores = torch.where(in_prefix & (scores == scores), scores, -torch.inf)
    best, positions = torch.topk(scores, width, dim=-1)
    column = torch.arange(width, device=scores.device)
    kept = (column < counts[:, None, None]).expand_as(positions)
    # The last score chosen, by which the row's ties are found; where nothing is chosen, any will do.
    last = (counts[:, None, None].long() - 1).clamp(min=0).expand(*scores.shape[:-1], 1)
    threshold = best.gather(-1, last)
    ambiguous = (scores == threshold).sum(-1) != ((best == threshold) & kept).sum(-1)
    out.copy_(positions.masked_fill(~kept, keys).sort(-1).values).masked_fill_(~kept, NO_POSITION)
    if bool(ambiguous.any()):
        tied = _largest_of_ties(
            scores[ambiguous], threshold[ambiguous], in_prefix.expand_as(scores)[ambiguous], kept[ambiguous]
        )
        out[ambiguous] = tied
    return out


def _largest_of_ties(scores: Tensor, threshold: Tensor, in_prefix: Tensor, kept: Tensor) -> Tensor:
    """Give the positions above the threshold and the largest of those at it, int64, shape ``[rows, width]``."""
    above = scores > threshold
    tied = (scores == threshold) & in_prefix
    room = kept.sum(-1, keepdim=True) - above.sum(-1, keepdim=True)
    from_the_right = tied.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    chosen = above | (tied & (from_the_right <= room))
    out = torch.full(kept.shape, NO_POSITION, dtype=torch.int64, device=scores.device)
    out[kept] = chosen.nonzero()[:, 1]
    return out


def with_recent(positions: Tensor, counts: Tensor, prefix_lens: Tensor, width: int) -> Tensor:
    """Append to each request's chosen positions all that come from its prefix's end on.

    ``list[b, g, j] = positions[b, g, j]`` for ``j < counts[b]``, then ``prefix_lens[b] + j - counts[b]``.

    Parameters
    ----------
    positions : Tensor
        Integer, shape ``[batch, groups, k]``, ``counts[b]`` of them real.
    counts, prefix_lens : Tensor
        Integer, shape ``[batch]``.
    width : int
        Columns of the list, at least ``k``.

    Returns
    -------
    Tensor
        Int64, shape ``[batch, groups, width]``; nothing waits for the device.

    """
    column = torch.arange(width, device=positions.device)
    counts, prefix_lens = counts[:, None, None].long(), prefix_lens[:, None, None].long()
    padded = torch.nn.functional.pad(positions, (0, width - positions.shape[-1]))
    return torch.where(column < counts, padded, prefix_lens + column - counts)


def rank_positions(scores: Tensor, lengths: Tensor, counts: Tensor, width: int) -> Tensor:
    """Do as `select_positions` does, waiting for nothing on the device, at the cost of a sort.

    Parameters
    ----------
    scores, lengths, counts : Tensor
        As for `select_positions`; scores are finite or NaN.
    width : int
        Columns of the answer, at least ``max(counts)``; at most so many of the positions are given.

    Returns
    -------
    Tensor
        Int64, shape ``[..., batch, groups, width]``: ascending positions, then `NO_POSITION`.

    """
    keys = scores.shape[-1]
    column = torch.arange(max(keys, width), device=scores.device)
    # The lowest number keeps a NaN of the prefix before what lies beyond it.
    scores = scores.nan_to_num(nan=torch.finfo(scores.dtype).min)
    scores = scores.masked_fill(column[:keys] >= lengths[:, None, None], -torch.inf)
    # Sorted backwards, so that the larger of tied positions comes first.
    ranked = keys - 1 - scores.flip(-1).argsort(dim=-1, descending=True, stable=True)
    chosen = ranked.masked_fill(column[:keys] >= counts[:, None, None], keys)[..., :width].sort(-1).values
    chosen = torch.nn.functional.pad(chosen, (0, width - chosen.shape[-1]), value=keys)
    return chosen.masked_fill(chosen == keys, NO_POSITION)
