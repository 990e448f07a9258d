"""verify_attention against its plain-torch reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ops.cases import LAYOUTS, make_batch
from tests.ops.verification import check, launch, make_plan, run
from vegas_spec.ops import verify_attention


def test_ragged_batch(device):
    """Lengths 0 and 1, page and tile boundaries, a padding row, a long request that several programs share."""
    query_lens = [3, 1, 0, 2, 3, 3, 1, 3]
    seq_lens = [77, 1, 0, 2, 16, 33, 0, 300]
    check(make_batch(query_lens, seq_lens, device=device), device)


def test_more_heads_than_programs(device):
    """With equal lengths and no padding in between, a program's heads come from different requests."""
    count = 264 if device.type == "cuda" else 6
    for seq_lens in ([40] * count + [0], [40, 0] * count):
        query_lens = [min(2, length) for length in seq_lens]
        check(make_batch(query_lens, seq_lens, device=device, seed=12), device)


@pytest.mark.parametrize("score", [None, "weight", "logit"])
@pytest.mark.parametrize("rows", ["ends", "all"])
def test_scores(device, score, rows):
    check(make_batch([4, 1], [150, 40], device=device, seed=1), device, score=score, rows=rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layouts_and_dtypes(device, layout, dtype):
    check(make_batch([3, 2], [90, 47], layout=layout, dtype=dtype, device=device, seed=2), device)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (7, 1), (6, 2), (16, 1)])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_groups_and_dims(device, heads, kv_heads, head_dim):
    if device.type == "cpu" and heads != 7 and head_dim != 96:
        pytest.skip("every group and every dimension once is enough for the interpreter")
    batch = make_batch([2, 2], [70, 35], heads=heads, kv_heads=kv_heads, head_dim=head_dim, device=device, seed=3)
    check(batch, device)


@pytest.mark.parametrize("block_size", [16, 48, 64])
def test_block_sizes(device, block_size):
    check(make_batch([3, 1], [129, 64], block_size=block_size, device=device, seed=4), device)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_cache(device, cache_dtype):
    scales = tuple(torch.tensor([s], device=device) for s in (0.5, 2.0))
    batch = make_batch([3, 2], [70, 33], cache_dtype=cache_dtype, device=device, seed=5)
    check(batch, device, scales=scales)


def test_sinks_and_softcap(device):
    sinks = torch.tensor([0.5, 3.0, -1.0, 20.0], device=device)
    batch = make_batch([3, 2], [90, 200], device=device, seed=6)
    check(batch, device, sinks=sinks)
    check(batch, device, softcap=5.0)
    check(batch, device, sinks=sinks, softcap=5.0)


@pytest.mark.parametrize("window", [1, 20, 64])
def test_sliding_window(device, window):
    check(make_batch([3, 1], [150, 10], device=device, seed=7), device, window=window, score=None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_key_far_above_the_sample(device, dtype):
    """One logit exceeds everything in the sample by more than the range: the program repeats its share."""
    batch = make_batch([2], [260], dtype=dtype, device=device, seed=8, sharpness=1.0)
    page = batch.block_table[0, 60 // 16].long()
    batch.key_cache[page, 60 % 16] = batch.query[0, ::2] * 12.0
    check(batch, device, level_slack=3)


def test_all_equal_scores(device):
    batch = make_batch([2], [100], device=device)
    batch.query.zero_()
    check(batch, device)


def test_nan_and_infinite_logits_have_the_lowest_level(device):
    batch = make_batch([1], [200], heads=2, kv_heads=2, device=device, seed=9)
    page = batch.block_table[0, 64 // 16].long()
    batch.key_cache[page, 0, 0] = torch.nan
    plan = make_plan(batch, device)
    plan.launch(batch.query_start_loc, batch.seq_lens)
    out, _, levels, histogram = run(launch, batch, plan)
    assert levels[0, 64] == 0
    assert (levels[0, :64] > 0).all()
    assert out[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()
    assert histogram.sum() == 400


def test_requests_without_room_are_counted_and_nothing_else_is_written(device):
    batch = make_batch([2, 2, 2], [100, 90, 20], device=device, seed=10)
    plan = make_plan(batch, device, score_capacity=128)
    plan.launch(batch.query_start_loc, batch.seq_lens)
    out, _, levels, _ = run(launch, batch, plan)
    assert plan.score_offsets.tolist()[:3] == [0, -1, -1]
    assert plan.dropped.item() == 2
    assert (levels[:, :99] >= 0).all()
    assert (levels[:, 99:] == -1).all()
    assert out.isfinite().all()


@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_any_shape(data):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    longest = 2000 if device.type == "cuda" else 150
    count = data.draw(st.integers(1, 4))
    seq_lens = data.draw(st.lists(st.integers(0, longest), min_size=count, max_size=count))
    query_lens = [data.draw(st.integers(0, min(3, length))) for length in seq_lens]
    if sum(query_lens) == 0:
        return
    batch = make_batch(query_lens, seq_lens, heads=6, kv_heads=2, device=device, seed=data.draw(st.integers(0, 99)))
    score, window = data.draw(st.sampled_from([("weight", None), ("logit", None), (None, 17)]))
    check(batch, device, score=score, window=window)


def test_public_function_runs_by_device(device):
    batch = make_batch([3, 2], [60, 31], device=device, seed=11)
    plan = make_plan(batch, device)
    plan.prepare(batch.query_start_loc, batch.seq_lens)
    out = torch.full_like(batch.query, torch.nan)
    verify_attention(
        batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens, plan,
        out=out, scale=0.1, score="weight",
    )  # fmt: skip
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": torch.empty(1, 4, 64, dtype=torch.bfloat16)}, r"out must be of shape \[5, 4, 64\]; got \[1, 4, 64\]"),
        ({"score": "best"}, "score must be one of weight, logit; got 'best'"),
        ({"rows": "last"}, "rows must be one of ends, all; got 'last'"),
        ({"softcap": -1.0}, "softcap must be positive; got -1.0"),
        ({"lse": torch.empty(5, 4, dtype=torch.float64)}, "lse must be of dtype torch.float32; got torch.float64"),
        ({"sinks": torch.empty(3)}, r"sinks must be of shape \[4\]; got \[3\]"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    device = torch.device("cpu")
    batch = make_batch([3, 2], [60, 31])
    plan = make_plan(batch, device)
    options = {"out": torch.empty_like(batch.query), "scale": 0.1, "score": "weight"} | change
    with pytest.raises(ValueError, match=message):
        verify_attention(
            batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens,
            plan, **options,
        )  # fmt: skip
