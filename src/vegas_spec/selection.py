"""From the logits that verification computed to the KV positions that the next draft reads: the definition.

Everything here is plain torch, vectorised over a ragged batch, and works in any floating dtype. Kernels are tested
against it. Source: Vegas (arXiv 2602.07223); ``docs/how-it-works.md`` has the same in prose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vegas_spec.config import Granularity, Score, VegasConfig

NO_POSITION = -1
"""Fills the unused end of a row of positions."""


def score_rows(
    logits: Tensor,
    visible: Tensor,
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
    visible : Tensor
        Whether row ``t`` may see key ``i``, bool, shape ``[rows, keys]``.
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
    logits = logits if logits.dtype == torch.float64 else logits.float()
    hidden = ~visible[:, None, :]
    if score == "weight":
        logits = logits.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            column = sinks.to(logits)[None, :, None].expand(rows, heads, 1)
            logits = torch.cat([logits, column], dim=-1)
        per_row = torch.softmax(logits, dim=-1)[..., :keys]
    else:
        per_row = logits.masked_fill(hidden, 0.0)
    groups = num_kv_heads if granularity == "kv_head" else 1
    return per_row.sum(0).view(groups, heads // groups, keys).sum(1)


def budgets(prefix_lens: Tensor, config: VegasConfig) -> Tensor:
    """KV entries to select per request, int64, shape of ``prefix_lens``: `VegasConfig.budget` for a tensor."""
    wanted = (prefix_lens.long() * config.kv_budget_millionths + 999_999) // 1_000_000
    return wanted.clamp(min=config.kv_budget_min, max=config.kv_budget_max).minimum(prefix_lens.long())


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
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).masked_fill(~in_prefix, -torch.inf)
    counts = counts[:, None, None].long()
    best = torch.topk(scores, width, dim=-1).values
    # A request with an empty budget has no last chosen score; its threshold is never used because it keeps nothing.
    threshold = best.gather(-1, (counts - 1).clamp(min=0).expand(*scores.shape[:-1], 1))
    above = scores > threshold
    tied = (scores == threshold) & in_prefix
    room = counts - above.sum(-1, keepdim=True)
    from_the_right = tied.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    chosen = (above | (tied & (from_the_right <= room))) & (counts > 0)
    column = chosen.cumsum(-1, dtype=torch.int32) - 1
    *lead, position = chosen.nonzero(as_tuple=True)
    out[(*lead, column[chosen].long())] = position
    return out
