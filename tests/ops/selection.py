"""select_kv's kernel against its plain-torch reference, on a plan as verification leaves it."""

from __future__ import annotations

import dataclasses
from unittest import mock

import torch

from vegas_spec.ops.levels import LEVELS
from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.record import slots_of_tiles
from vegas_spec.ops.select_kv import launch, reference, select_kv
from vegas_spec.ops.tuning import VerifyTuning

POISON = -7


def make_plan(
    prefix_lens, device, *, kv_heads=2, granularity="kv_head", lookahead=0.0, capacity=None, levels=LEVELS, seed=0
):
    """A plan as verification leaves it: random levels of the prefixes and their histogram."""
    plan = VerifyPlan.allocate(
        num_heads=kv_heads, num_kv_heads=kv_heads, head_dim=64, max_query_len=1, max_requests=len(prefix_lens) + 1,
        score_capacity=sum(prefix_lens) + 16 * len(prefix_lens) if capacity is None else capacity,
        granularity=granularity, lookahead=lookahead, device=device, tuning=VerifyTuning(32, 2, 4, 3),
    )  # fmt: skip
    seq_lens = torch.tensor(prefix_lens, dtype=torch.int32, device=device)
    bounds = torch.arange(len(prefix_lens) + 1, dtype=torch.int32, device=device)
    plan.prepare(bounds, seq_lens)
    generator = torch.Generator().manual_seed(seed)
    plan.levels.copy_(torch.randint(0, levels, plan.levels.shape, generator=generator))
    count_levels(plan, prefix_lens)
    return plan


def count_levels(plan, prefix_lens):
    plan.histogram.fill_(POISON)  # select_kv reads only the parts that verification counts
    if plan.ranked:
        return
    for request, n in enumerate(prefix_lens):
        offset = int(plan.score_offsets[request])
        if offset >= 0 and n:
            slot = slots_of_tiles(plan.programs, plan.tile_starts, request, plan.groups)
            plan.histogram[slot] = 0
            slot = slot.repeat_interleave(plan.tuning.tile, 1)[:, :n]
            level = plan.levels[:, offset : offset + n].long()
            plan.histogram.index_put_((slot, level), plan.histogram.new_ones(()), accumulate=True)


def make_table(prefix_lens, tail, block_size, device, seed=0):
    width = max(1, (max(prefix_lens) + tail + block_size - 1) // block_size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(prefix_lens) * width, generator=generator).int().view(-1, width).to(device)


def run(function, plan, counts, table, *, block_size=16, score="weight", tail=0, width=None):
    """Call the op, run by its kernel (`launch`) or its `reference`, with outputs that are poisoned beforehand."""
    batch = len(counts)
    shape = (batch, plan.groups, int(counts.max()) + tail if width is None else width)
    slots = torch.full(shape, POISON, dtype=torch.int32, device=counts.device)
    positions = torch.full_like(slots, POISON)
    plan.ranks.fill_(POISON)
    plan = dataclasses.replace(plan, histogram=plan.histogram.clone())
    with mock.patch.object(torch.ops.vegas_spec, "select_kv", function):
        select_kv(plan, counts, table, block_size, slots=slots, score=score, positions=positions, tail=tail)
    return slots, positions


def check(plan, prefix_lens, counts, device, *, block_size=16, tail=0, **options):
    counts = torch.tensor(counts, dtype=torch.int32, device=device)
    table = make_table(prefix_lens, tail, block_size, device)
    got = run(launch, plan, counts, table, block_size=block_size, tail=tail, **options)
    again = run(launch, plan, counts, table, block_size=block_size, tail=tail, **options)
    want = run(reference, plan, counts, table, block_size=block_size, tail=tail, **options)
    for one, two, three in zip(got, again, want, strict=True):
        assert torch.equal(one, two), "two runs differ"
        assert torch.equal(one, three)
    return got
