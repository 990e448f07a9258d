"""Full attention of a verification, and as a by-product the scores that the next draft is selected by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vegas_spec.config import Rows, Score
from vegas_spec.ops.checks import (
    FLOATS,
    HALVES,
    check_cache,
    check_choice,
    check_last_dim,
    check_logit_options,
    check_scales,
    check_tensor,
    refuse,
)
from vegas_spec.ops.levels import FLOOR, LEVELS, STEPS, to_levels
from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.record import slots_of_tiles
from vegas_spec.ops.register import register
from vegas_spec.ops.tuning import launch_options
from vegas_spec.ops.verify_kernel import SAMPLE_FIRST, SAMPLE_KEYS, verify_kernel


def verify_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    plan: VerifyPlan,
    *,
    out: Tensor,
    scale: float,
    score: Score | None = None,
    rows: Rows = "ends",
    lse: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    validate: bool = True,
) -> Tensor:
    """Attend from every query row to the cached keys it may see; score the prefix on the way.

    Row ``t`` of request ``b`` is at position ``p = seq_lens[b] - query_lens[b] + t`` and sees keys ``i <= p`` (with a
    sliding window, ``i > p - window`` as well). With ``l[t, h, i] = scale * <q[t, h], k[i]>``, soft-capped when asked,

    - ``lse[t, h] = log(sum_i exp(l[t, h, i]) + exp(sinks[h]))``
    - ``out[t, h] = sum_i exp(l[t, h, i] - lse[t, h]) * v[i]``

    and for the prefix ``i < n = seq_lens[b] - query_lens[b] + 1``, summed over the chosen rows ``t`` (``ends``: first
    and last; ``all``) and the query heads ``h`` of each KV head, from logits before the soft-cap,

    - ``weight``: ``plan.levels[kv_head, offset[b] + i] = level(log2 sum exp(l[t, h, i] - estimate[t, h]))``
    - ``logit``: ``plan.levels[kv_head, offset[b] + i] = level(log2(e) * (mean l[t, h, i] - anchor))``

    where `level` is `vegas_spec.ops.levels`, ``estimate`` is the LSE (sinks included) over a sample of the keys that
    the row sees, the first 32 and the latest 96 of the request, and ``anchor`` is the largest mean in the sample. Both
    are known before the pass over the keys, so one number per KV head and key is all that is written; ``anchor`` leaves
    the order alone, and an estimate that is off weighs one row or head more than another.

    Parameters
    ----------
    query : Tensor
        bfloat16 or float16, shape ``[rows, heads, head_dim]``, last dimension contiguous.
    key_cache, value_cache : Tensor
        Of the query's dtype or float8, shape ``[blocks, block_size, kv_heads, head_dim]``, any strides but a contiguous
        last dimension. A joint cache ``[blocks, kv_heads, block_size, 2 * head_dim]`` of either physical order is
        passed as ``cache.transpose(1, 2).split(head_dim, -1)``.
    block_table : Tensor
        int32, shape ``[batch, blocks per request]``; entries past a request's last block are not read.
    query_start_loc, seq_lens : Tensor
        As given to ``plan.prepare`` in this step; int32, shapes ``[batch + 1]`` and ``[batch]``. A request with no rows
        or of length 0 is padding: nothing of it is read or written.
    plan : VerifyPlan
        Prepared for these lengths. Its window is the layer's.
    out : Tensor
        Written; like `query`, must not overlap it. Rows of no request are left alone.
    scale : float
        Of the logits, commonly ``head_dim ** -0.5``.
    score : {"weight", "logit"}, optional
        What to store in ``plan.levels`` and count in ``plan.histogram``, for `select_kv`; by default nothing.
    rows : {"ends", "all"}
        Which rows are scored. The last accepted row is not known inside a forward pass.
    lse : Tensor, optional
        Written; float32, shape ``[rows, heads]``, last dimension contiguous.
    softcap : float, optional
        Attention uses ``softcap * tanh(l / softcap)``.
    sinks : Tensor, optional
        A logit per query head that takes weight but has no key; shape ``[heads]``, contiguous.
    key_scale, value_scale : Tensor, optional
        What stored keys and values are multiplied by; float32, one element, on the device.
    validate : bool
        Whether to check the arguments. The host has a share in the time of eager steps: a caller whose layers are all
        alike may leave it out for all but one of them.

    Returns
    -------
    Tensor
        `out`.

    Notes
    -----
    Safe in CUDA graphs: lengths are read on the device, nothing waits for the host, nothing is allocated. Two calls
    with the same inputs give the same bits. A NaN score becomes level 0. Not checked: the values of the integer
    tensors. On a CPU the plain-torch `reference` runs.

    Examples
    --------
    A request of 30 cached tokens, the last 3 of which are being verified, in two blocks of 16:

    >>> import torch
    >>> from vegas_spec.ops import VerifyPlan, verify_attention
    >>> query, (key_cache, value_cache) = torch.randn(3, 4, 8), torch.randn(2, 5, 16, 2, 8)
    >>> block_table = torch.tensor([[3, 1]], dtype=torch.int32)
    >>> query_start_loc, seq_lens = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([30], dtype=torch.int32)
    >>> shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    >>> plan = VerifyPlan.allocate(**shape, max_query_len=3, max_requests=1, score_capacity=64, device="cpu")
    >>> plan.prepare(query_start_loc, seq_lens)
    >>> out = verify_attention(
    ...     query, key_cache, value_cache, block_table, query_start_loc, seq_lens, plan,
    ...     out=torch.empty_like(query), scale=8**-0.5, score="weight",
    ... )

    The second row sees all tokens but the last one. Its fourth head reads the second KV head:

    >>> keys, values = (cache[[3, 1]].flatten(0, 1)[:29, 1] for cache in (key_cache, value_cache))
    >>> torch.allclose(out[1, 3], (8**-0.5 * keys @ query[1, 3]).softmax(0) @ values, atol=1e-5)
    True

    The prefix, of which the next draft reads a part, has been scored, and each score counted:

    >>> plan.prefix_lens.tolist(), int(plan.histogram.sum())
    ([28], 56)

    """
    if validate:
        batch, (num_rows, heads, head_dim) = seq_lens.shape[0], query.shape
        device = query.device
        dtypes = HALVES if device.type == "cuda" else FLOATS
        check_tensor("query", query, (None, plan.num_heads, plan.head_dim), dtypes, plan.prefix_lens.device)
        check_last_dim("query", query)
        check_cache(key_cache, value_cache, plan.num_kv_heads, head_dim, query)
        check_tensor("block_table", block_table, (batch, None), (torch.int32,), device)
        check_last_dim("block_table", block_table)
        check_tensor("seq_lens", seq_lens, (batch,), (torch.int32,), device)
        check_tensor("query_start_loc", query_start_loc, (batch + 1,), (torch.int32,), device)
        check_tensor("out", out, query.shape, (query.dtype,), device)
        check_last_dim("out", out)
        if batch > plan.max_requests:
            raise refuse("seq_lens", f"of at most {plan.max_requests} requests", batch)
        check_choice("rows", rows, ("ends", "all"))
        if score is not None:
            check_choice("score", score, tuple(STEPS))
            if plan.score_capacity == 0:
                raise refuse("score", "None with a plan of no score_capacity", repr(score))
        if lse is not None:
            check_tensor("lse", lse, (num_rows, heads), (torch.float32,), device)
            check_last_dim("lse", lse)
        check_logit_options(softcap, sinks, heads, device)
        check_scales(key_scale, value_scale, device)
    torch.ops.vegas_spec.verify_attention(
        query, key_cache, value_cache, block_table, query_start_loc, seq_lens, sinks, key_scale, value_scale,
        plan.tile_starts, plan.programs, plan.score_offsets,
        out, lse, plan.levels, plan.histogram, plan.partial_out, plan.partial_stats, plan.arrivals,
        scale, softcap or 0.0, plan.window or 0, score or "none", rows, not plan.ranked,
        plan.tuning.tile, plan.tuning.stages, plan.tuning.warps,
    )  # fmt: skip
    return out


def launch(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    tile_starts: Tensor,
    programs: Tensor,
    score_offsets: Tensor,
    out: Tensor,
    lse: Tensor | None,
    levels: Tensor,
    histogram: Tensor,
    partial_out: Tensor,
    partial_stats: Tensor,
    arrivals: Tensor,
    scale: float,
    softcap: float,
    window: int,
    score: str,
    rows: str,
    count: bool,
    tile: int,
    stages: int,
    warps: int,
) -> None:
    """Run the Triton kernel."""
    _, block_size, kv_heads, head_dim = key_cache.shape
    float16 = query.dtype == torch.float16
    unused = seq_lens
    verify_kernel[(programs.shape[0],)](
        out, unused if lse is None else lse, query, key_cache, value_cache, block_table, query_start_loc, seq_lens,
        unused if sinks is None else sinks,
        unused if key_scale is None else key_scale,
        unused if value_scale is None else value_scale,
        tile_starts, programs, score_offsets, levels, histogram, partial_out, partial_stats, arrivals,
        scale, softcap * math.log2(math.e), window, block_size, levels.shape[1],
        out.stride(0), out.stride(1), 0 if lse is None else lse.stride(0), query.stride(0), query.stride(1),
        *key_cache.stride()[:3], *value_cache.stride()[:3], block_table.stride(0),
        KV_HEADS=kv_heads,
        GROUP=query.shape[1] // kv_heads,
        COLUMNS=partial_out.shape[2],
        HEAD_DIM=head_dim,
        DIM=partial_out.shape[1],
        TILE=tile,
        BLOCK_SIZE=block_size if block_size & (block_size - 1) == 0 else 0,
        SCORE=score,
        COUNT=count,
        ALL_ROWS=rows == "all",
        STEPS=0 if score == "none" else STEPS[score],  # type: ignore[index]
        FLOOR=0 if score == "none" else FLOOR[score],  # type: ignore[index]
        LEVELS=LEVELS,
        SAME_STRIDES=key_cache.stride() == value_cache.stride(),
        SOFTCAP=softcap > 0,
        WINDOW=window > 0,
        SINKS=sinks is not None,
        KEY_SCALE=key_scale is not None,
        VALUE_SCALE=value_scale is not None,
        LSE=lse is not None,
        # float16 weights reach 2^16 upwards and lose precision below 2^-14; bfloat16 has float32's range.
        SHIFT=4 if float16 else 0,
        LIMIT=2.0**15 if float16 else 2.0**64,
        STAGES=stages,
        num_warps=warps,
        **launch_options(query.device),
    )  # fmt: skip


def reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    tile_starts: Tensor,
    programs: Tensor,
    score_offsets: Tensor,
    out: Tensor,
    lse: Tensor | None,
    levels: Tensor,
    histogram: Tensor,
    partial_out: Tensor,
    partial_stats: Tensor,
    arrivals: Tensor,
    scale: float,
    softcap: float,
    window: int,
    score: str,
    rows: str,
    count: bool,
    tile: int,
    stages: int,
    warps: int,
) -> None:
    """Do the same in plain torch, in float32 (float64 for a float64 query), one request after another."""
    block_size, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    bounds = query_start_loc.tolist()
    for request, seq_len in enumerate(seq_lens.tolist()):
        start, stop = bounds[request], bounds[request + 1]
        query_len = stop - start
        if query_len == 0 or seq_len == 0:
            continue
        position = torch.arange(seq_len, device=query.device)
        block = block_table[request, position // block_size].long()
        key = key_cache[block, position % block_size].to(dtype) * (1.0 if key_scale is None else key_scale)
        value = value_cache[block, position % block_size].to(dtype) * (1.0 if value_scale is None else value_scale)
        row = torch.arange(seq_len - query_len, seq_len, device=query.device)[:, None]
        visible = (position <= row) & (position > row - window if window else True)
        raw = scale * torch.einsum("thd,ihd->thi", query[start:stop].to(dtype), key.repeat_interleave(group, 1))
        logits = softcap * torch.tanh(raw / softcap) if softcap else raw

        def log_sum_exp(logits: Tensor, seen: Tensor) -> Tensor:
            total = logits.masked_fill(~seen[:, None], -torch.inf).logsumexp(-1)
            return total if sinks is None else torch.logaddexp(total, sinks.to(total))

        total = log_sum_exp(logits, visible)
        weights = (logits - total[..., None]).exp().masked_fill(~visible[:, None], 0.0)
        out[start:stop] = torch.einsum("thi,ihd->thd", weights, value.repeat_interleave(group, 1)).to(out.dtype)
        if lse is not None:
            lse[start:stop] = total.float()

        offset, prefix = int(score_offsets[request]), seq_len - query_len + 1
        if score == "none" or offset < 0:
            continue
        chosen = slice(None) if rows == "all" else sorted({0, query_len - 1})
        sample = (position < SAMPLE_FIRST) | (position >= seq_len - (SAMPLE_KEYS - SAMPLE_FIRST))
        if score == "weight":
            estimate = log_sum_exp(raw[chosen], (visible & sample)[chosen])
            weight = (raw[chosen] - estimate[..., None]).exp().masked_fill(~visible[chosen][:, None], 0.0)
            x = weight.sum(0).view(-1, group, seq_len).sum(1).log2()
        else:
            mean = raw[chosen].mean(0).view(-1, group, seq_len).mean(1) * math.log2(math.e)
            x = mean - mean[:, :prefix].masked_fill(~sample[:prefix], -torch.inf).amax(1, keepdim=True)
        level = to_levels(x[:, :prefix], score)  # type: ignore[arg-type]
        levels[:, offset : offset + prefix] = level
        if count:
            slot = slots_of_tiles(programs, tile_starts, request, level.shape[0])
            histogram[slot] = 0
            slot = slot.repeat_interleave(tile, 1)[:, :prefix]
            histogram.index_put_((slot, level.long()), histogram.new_ones(()), accumulate=True)


register(
    "verify_attention",
    launch,
    reference,
    mutates=("out", "lse", "levels", "histogram", "partial_out", "partial_stats", "arrivals"),
)
