"""The best-scored cache slots of every request, in one pass over the scores."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from vegas_spec.config import Score
from vegas_spec.ops.checks import check_choice, check_contiguous, check_last_dim, check_tensor, refuse
from vegas_spec.ops.levels import FLOOR, LEVELS, STEPS, decay_levels, to_levels
from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.register import register
from vegas_spec.ops.select_kernel import rank_kernel, select_kernel
from vegas_spec.ops.tuning import SELECT, launch_options
from vegas_spec.selection import FIRST_POSITIONS


def select_kv(
    plan: VerifyPlan,
    counts: Tensor,
    block_table: Tensor,
    block_size: int,
    *,
    slots: Tensor,
    score: Score,
    positions: Tensor | None = None,
    tail: int = 0,
    validate: bool = True,
) -> Tensor:
    """Choose each request's ``counts[b]`` best positions of ``[0, prefix_lens[b])``, and say where the cache has them.

    With ``P[b, g]`` the chosen positions in ascending order, and ``slot(b, i) = block_table[b, i // block_size] *
    block_size + i % block_size``,

    - ``slots[b, g, j] = slot(b, P[b, g][j])`` for ``j < counts[b]``
    - ``slots[b, g, counts[b] + j] = slot(b, prefix_lens[b] + j)`` for ``j < tail``

    so that the draft's step at length ``s`` reads the first ``counts[b] + s - prefix_lens[b]`` of them. The levels that
    `verify_attention` has just stored decide; ties go to the larger position. With granularity ``layer`` the heads'
    scores are summed first; with ``plan.lookahead`` they then flow to the keys that follow. A request for which
    ``plan.score_offsets[b] < 0`` takes its first 16 positions and its latest ones.

    Parameters
    ----------
    plan : VerifyPlan
        Prepared in this step; `verify_attention` has scored with it.
    counts : Tensor
        Positions to choose, int32, shape ``[batch]``; what exceeds the prefix is cut off. Read on the device.
    block_table : Tensor
        int32, shape ``[batch, blocks per request]``.
    block_size : int
        Tokens per block.
    slots : Tensor
        Written; int32, contiguous, shape ``[batch, groups, width]``, groups being KV heads or 1. Entries beyond
        ``counts[b] + tail``, and those of padding rows, are left alone; what does not fit the width is not written.
    score : {"weight", "logit"}
        What `verify_attention` stored.
    positions : Tensor, optional
        Written; like `slots`, with positions instead of slots.
    tail : int
        Positions after the prefix to append: ``2 * gamma`` reach to the end of the draft. Slots of blocks that the
        block table does not have become 0.
    validate : bool
        As in `verify_attention`.

    Returns
    -------
    Tensor
        `slots`.

    Notes
    -----
    Safe in CUDA graphs, deterministic, allocates nothing. On a CPU the plain-torch `reference` runs.

    Examples
    --------
    A request of 30 tokens in blocks 3 and 4, whose last row attends to positions 5 and 20 above all:

    >>> import torch
    >>> from vegas_spec.ops import VerifyPlan, select_kv, verify_attention
    >>> query, (key_cache, value_cache) = torch.ones(1, 1, 8), torch.zeros(2, 5, 16, 1, 8)
    >>> key_cache[3, 5], key_cache[4, 20 - 16] = 1.0, 2.0
    >>> block_table = torch.tensor([[3, 4]], dtype=torch.int32)
    >>> query_start_loc, seq_lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([30], dtype=torch.int32)
    >>> shape = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8}
    >>> plan = VerifyPlan.allocate(**shape, max_query_len=1, max_requests=1, score_capacity=64, device="cpu")
    >>> plan.prepare(query_start_loc, seq_lens)
    >>> _ = verify_attention(
    ...     query, key_cache, value_cache, block_table, query_start_loc, seq_lens, plan,
    ...     out=torch.empty_like(query), scale=1.0, score="weight",
    ... )

    Its 2 best positions, and the one that comes next, as slots (block 3 begins at slot 48, block 4 at 64):

    >>> counts, slots = torch.tensor([2], dtype=torch.int32), torch.empty(1, 1, 3, dtype=torch.int32)
    >>> select_kv(plan, counts, block_table, 16, slots=slots, score="weight", tail=1).tolist()
    [[[53, 68, 78]]]

    """
    if validate:
        batch, device = counts.shape[0], plan.levels.device
        if batch > plan.max_requests:
            raise refuse("counts", f"of at most {plan.max_requests} requests", batch)
        if plan.score_capacity == 0:
            raise refuse("plan", "one with score_capacity", 0)
        check_choice("score", score, tuple(STEPS))
        check_tensor("counts", counts, (batch,), (torch.int32,), device)
        check_contiguous("counts", counts)
        check_tensor("block_table", block_table, (batch, None), (torch.int32,), device)
        check_last_dim("block_table", block_table)
        for name, tensor in (("slots", slots), ("positions", positions)):
            if tensor is not None:
                width = None if name == "slots" else slots.shape[2]
                check_tensor(name, tensor, (batch, plan.groups, width), (torch.int32,), device)
                check_contiguous(name, tensor)
        if tail < 0 or tail > slots.shape[2]:
            raise refuse("tail", "from 0 to the width of slots", tail)
        if plan.lookahead and score != "weight":
            raise refuse("score", "'weight' with a plan of lookahead", repr(score))
    torch.ops.vegas_spec.select_kv(
        plan.levels, plan.ranks, plan.histogram, plan.programs, plan.tile_starts, plan.prefix_lens, plan.score_offsets,
        counts, block_table, slots, positions, block_size, tail, score, plan.tuning.tile,
        plan.parts(counts.shape[0]) if plan.ranked else 0, decay_levels(plan.lookahead),
    )  # fmt: skip
    return slots


def launch(
    levels: Tensor,
    ranks: Tensor,
    histogram: Tensor,
    programs: Tensor,
    tile_starts: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
    tile: int,
    parts: int,
    decay: int,
) -> None:
    """Run the Triton kernels."""
    batch, groups, width = slots.shape
    if parts:
        rank_kernel[(batch * groups * parts,)](
            ranks, histogram, levels, prefix_lens, score_offsets, counts, levels.shape[1], parts, decay,
            GROUPS=groups, HEADS=levels.shape[0] // groups, CHUNK=SELECT.rank_chunk,
            HALO=triton.next_power_of_2(triton.cdiv(LEVELS, decay)) if decay else 0,
            WEIGHT=score == "weight", STEPS=STEPS[score], FLOOR=FLOOR[score], LEVELS=LEVELS,  # type: ignore[index]
            num_warps=SELECT.rank_warps,
            **launch_options(levels.device),
        )  # fmt: skip
    select_kernel[(batch * groups * parts if parts else programs.shape[0],)](
        slots, slots if positions is None else positions, ranks if parts else levels, histogram, programs, tile_starts,
        prefix_lens, score_offsets, counts, block_table, block_table.stride(0), block_table.shape[1], levels.shape[1],
        parts, width, tail, block_size,
        GROUPS=groups, TILE=tile, RANKED=parts > 0,
        LEVELS=LEVELS, CHUNK=SELECT.chunk, RANK_CHUNK=SELECT.rank_chunk,
        POSITIONS=positions is not None, FIRST=FIRST_POSITIONS,
        BLOCK_SIZE=block_size if block_size & (block_size - 1) == 0 else 0,
        TAIL=triton.next_power_of_2(max(tail, 1)), num_warps=SELECT.warps,
        **launch_options(levels.device),
    )  # fmt: skip


def reference(
    levels: Tensor,
    ranks: Tensor,
    histogram: Tensor,
    programs: Tensor,
    tile_starts: Tensor,
    prefix_lens: Tensor,
    score_offsets: Tensor,
    counts: Tensor,
    block_table: Tensor,
    slots: Tensor,
    positions: Tensor | None,
    block_size: int,
    tail: int,
    score: str,
    tile: int,
    parts: int,
    decay: int,
) -> None:
    """Do the same in plain torch, one request after another."""
    batch, groups, width = slots.shape
    for request in range(batch):
        prefix, offset = int(prefix_lens[request]), int(score_offsets[request])
        if prefix == 0:
            continue
        count = min(int(counts[request]), prefix)
        if offset < 0:
            first = min(FIRST_POSITIONS, count)
            chosen = torch.cat([torch.arange(first), torch.arange(prefix - count + first, prefix)]).expand(groups, -1)
        else:
            level = levels[:, offset : offset + prefix].int()
            if groups != level.shape[0]:
                level = merge_heads(level, score)
            if decay:
                # m[i] + decay * i never falls, whatever was lost.
                fallen = decay * torch.arange(prefix, device=level.device)
                level = (level + fallen).cummax(1).values - fallen
            # Level and position in one number: the larger position wins a tie.
            order = level.long() * 2**32 + torch.arange(prefix, device=level.device)
            chosen = order.topk(count, dim=1).indices.sort(1).values.cpu()
        chosen = torch.cat([chosen, torch.arange(prefix, prefix + tail).expand(groups, -1)], 1)[:, :width]
        block = chosen // block_size
        known = block < block_table.shape[1]
        table = block_table[request].cpu()
        slot = table[block.clamp(max=len(table) - 1)] * block_size + chosen % block_size
        slots[request, :, : chosen.shape[1]] = slot.masked_fill(~known, 0).int().to(slots.device)
        if positions is not None:
            positions[request, :, : chosen.shape[1]] = chosen.int().to(slots.device)


def merge_heads(level: Tensor, score: str) -> Tensor:
    """One score for all KV heads: levels of ``[heads, keys]`` to ``[1, keys]``, summed as what they stand for."""
    if score == "logit":
        return level.sum(0, keepdim=True) // level.shape[0]
    weights = (level / STEPS["weight"] + FLOOR["weight"]).exp2()
    return to_levels(weights.sum(0, keepdim=True).log2(), "weight").int()


register("select_kv", launch, reference, mutates=("ranks", "histogram", "slots", "positions"))
