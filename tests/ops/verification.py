"""verify_attention's kernel against its plain-torch reference."""

from __future__ import annotations

import dataclasses
from unittest import mock

import torch

from tests.ops.cases import Batch
from vegas_spec.ops.levels import LEVELS
from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.record import UNITS
from vegas_spec.ops.tuning import VerifyTuning
from vegas_spec.ops.verify_attention import launch, reference, verify_attention

SMALL = VerifyTuning(tile=32, stages=2, warps=4, programs_per_multiprocessor=2)


def make_plan(batch: Batch, device: torch.device, **options: object) -> VerifyPlan:
    _, heads, head_dim = batch.query.shape
    lens = batch.query_start_loc.diff()
    settings = {
        "num_heads": heads,
        "num_kv_heads": batch.key_cache.shape[2],
        "head_dim": head_dim,
        "max_query_len": max(1, int(lens.max())),
        "max_requests": len(batch.seq_lens) + 1,
        "score_capacity": 0 if options.get("window") else int(batch.seq_lens.sum()) + 16 * len(batch.seq_lens),
        "device": device,
        "tuning": SMALL if device.type == "cpu" else None,
    }
    return VerifyPlan.allocate(**(settings | options))


def run(
    function,
    batch: Batch,
    plan: VerifyPlan,
    *,
    score="weight",
    rows="ends",
    softcap=None,
    sinks=None,
    scales=(None,) * 2,
):
    """Call the op, run by its kernel (`launch`) or its `reference`, with outputs that are poisoned beforehand."""
    query = batch.query if function is not reference else batch.query.double()
    out = torch.full_like(query, torch.nan)
    lse = torch.full(query.shape[:2], torch.nan, dtype=torch.float32, device=query.device)
    plan.levels.fill_(-1)
    plan.histogram.zero_()
    with mock.patch.object(torch.ops.vegas_spec, "verify_attention", function):
        verify_attention(
            query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens, plan,
            out=out, scale=batch.query.shape[-1] ** -0.5, score=score, rows=rows, lse=lse, softcap=softcap,
            sinks=sinks, key_scale=scales[0], value_scale=scales[1], validate=False,
        )  # fmt: skip
    return out, lse, plan.levels.clone(), plan.histogram.clone()


def check(batch: Batch, device: torch.device, *, window=None, tolerance=2e-2, level_slack=2, **options) -> None:
    plan = make_plan(batch, device, window=window)
    plan.launch(batch.query_start_loc, batch.seq_lens)
    fields = ("tile_starts", "programs", "prefix_lens", "score_offsets", "dropped")
    plan_again = dataclasses.replace(plan, **{name: torch.zeros_like(getattr(plan, name)) for name in fields})
    plan_again.reference(batch.query_start_loc, batch.seq_lens)
    for name in ("tile_starts", "prefix_lens", "score_offsets", "dropped"):
        assert torch.equal(getattr(plan, name), getattr(plan_again, name)), name
    working = plan_again.programs[:, UNITS.value] > 0
    assert torch.equal(plan.programs[working], plan_again.programs[working])
    assert (plan.programs[~working, UNITS.value] <= 0).all()
    out, lse, levels, histogram = run(launch, batch, plan, **options)
    again = run(launch, batch, plan, **options)
    assert not plan.arrivals.any()
    for first, second in zip((out, lse, levels, histogram), again, strict=True):
        assert torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0)), "two runs differ"
    want_out, want_lse, want_levels, want_histogram = run(reference, batch, plan, **options)
    assert torch.equal(lse.isnan(), want_lse.isnan())
    error = (out.double() - want_out).nan_to_num().norm() / want_out.nan_to_num().norm().clamp(min=1e-9)
    assert error < tolerance, error
    torch.testing.assert_close(lse, want_lse, atol=2e-2, rtol=2e-3, equal_nan=True)
    if options.get("score", "weight") is None:
        assert not histogram.any()
        return
    assert torch.equal(levels < 0, want_levels < 0), "scores outside of the prefix were written, or inside were not"
    off = (levels.int() - want_levels.int()).abs()
    # bfloat16 products are exact in float32 but summed in another order, so a level may fall on the other side.
    assert off.max() <= level_slack, off.max()
    assert (off > 0).float().mean() < 0.05
    assert histogram.sum() == (levels >= 0).sum()
    assert torch.equal(histogram.sum(0), torch.bincount(levels[levels >= 0].int(), minlength=LEVELS))
    moved = (histogram - want_histogram).abs().sum(-1) > 2 * level_slack * (off > 0).sum()
    assert not moved.any(), "a part's scores were counted elsewhere"
