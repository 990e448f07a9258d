"""sparse_attention against its plain-torch reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ops.cases import LAYOUTS, make_batch
from vegas_spec.ops.sparse_attention import SparseWorkspace, launch, reference, sparse_attention
from vegas_spec.ops.tuning import SparseTuning

SMALL = SparseTuning(tile=32, stages=2, warps=4, programs_per_multiprocessor=2)


def make_lists(batch, counts, prefix_lens, groups, seed=0):
    """Random positions of each prefix, then everything since it, as slots; NaN keys lie where no list points."""
    generator = torch.Generator().manual_seed(seed)
    block_size = batch.key_cache.shape[1]
    seq_lens = batch.seq_lens.tolist()
    width = max(min(c, n) + s - n for c, n, s in zip(counts, prefix_lens, seq_lens, strict=True)) + 2
    slots = torch.full((len(seq_lens), groups, max(width, 1)), 10**8, dtype=torch.int32)
    table = batch.block_table.cpu()
    for request, (count, prefix, seq_len) in enumerate(zip(counts, prefix_lens, seq_lens, strict=True)):
        for group in range(groups if seq_len else 0):
            chosen = torch.randperm(prefix, generator=generator)[:count]
            position = torch.cat([chosen, torch.arange(prefix, seq_len)])
            slot = table[request, position // block_size] * block_size + position % block_size
            slots[request, group, : len(slot)] = slot
    return slots.to(batch.query.device)


def run(function, batch, slots, counts, prefix_lens, workspace, *, softcap=0.0, sinks=None, scales=(None, None)):
    query = batch.query.double() if function is reference else batch.query
    out = torch.full_like(query, torch.nan)
    pairs = query.shape[0] * batch.key_cache.shape[2]
    function(
        query, batch.key_cache, batch.value_cache, slots, counts, prefix_lens, batch.seq_lens, sinks, *scales,
        out, workspace.partial_out, workspace.partial_stats, workspace.arrivals, query.shape[-1] ** -0.5, softcap,
        workspace.splits(pairs), workspace.tuning(pairs).tile, workspace.tuning(pairs).stages,
        workspace.tuning(pairs).warps,
    )  # fmt: skip
    return out


def check(device, counts, prefix_lens, seq_lens, *, layer=False, heads=4, kv_heads=2, seed=0, options=None, **shape):
    batch = make_batch([1] * len(seq_lens), seq_lens, heads=heads, kv_heads=kv_heads, device=device, seed=seed, **shape)
    slots = make_lists(batch, counts, prefix_lens, 1 if layer else kv_heads, seed)
    ints = [torch.tensor(x, dtype=torch.int32, device=device) for x in (counts, prefix_lens)]
    workspace = SparseWorkspace.allocate(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=batch.query.shape[-1], max_requests=len(seq_lens) + 1,
        device=device, tuning=SMALL if device.type == "cpu" else None,
    )  # fmt: skip
    out = run(launch, batch, slots, *ints, workspace, **(options or {}))
    again = run(launch, batch, slots, *ints, workspace, **(options or {}))
    want = run(reference, batch, slots, *ints, workspace, **(options or {}))
    assert not workspace.arrivals.any()
    assert torch.equal(out.nan_to_num(7.0), again.nan_to_num(7.0)), "two runs differ"
    assert torch.equal(out.isnan(), want.isnan()), "padding was written, or a row was not"
    error = (out.double() - want).nan_to_num().norm() / want.nan_to_num().norm().clamp(min=1e-9)
    assert error < 2e-2, error


@pytest.mark.parametrize("layer", [False, True])
def test_ragged_batch(device, layer):
    """A padding row, an empty budget, a list of one slot, tile boundaries, several programs per list."""
    check(device, [40, 0, 1, 0, 32, 500], [90, 8, 1, 0, 60, 200], [97, 10, 1, 0, 60, 203], layer=layer)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layouts_and_dtypes(device, layout, dtype):
    check(device, [40, 9], [90, 20], [92, 25], layout=layout, dtype=dtype, seed=1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (7, 1), (16, 1)])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_groups_and_dims(device, heads, kv_heads, head_dim):
    if device.type == "cpu" and heads != 7 and head_dim != 96:
        pytest.skip("every group and every dimension once is enough for the interpreter")
    check(device, [40, 9], [60, 20], [62, 25], heads=heads, kv_heads=kv_heads, head_dim=head_dim, seed=2)


@pytest.mark.parametrize("block_size", [16, 48, 64])
def test_block_sizes(device, block_size):
    check(device, [40], [100], [104], block_size=block_size, seed=3)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_cache(device, cache_dtype):
    scales = tuple(torch.tensor([s], device=device) for s in (0.5, 2.0))
    check(device, [40, 9], [60, 20], [62, 25], cache_dtype=cache_dtype, seed=4, options={"scales": scales})


def test_sinks_and_softcap(device):
    sinks = torch.tensor([0.5, 3.0, -1.0, 20.0], device=device)
    check(device, [40, 9], [60, 20], [62, 25], seed=5, options={"sinks": sinks, "softcap": 5.0})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_far_from_zero(device, dtype, sign):
    """All logits beyond what exp can hold: the program takes the maximum and repeats its part."""
    batch = make_batch([1], [80], dtype=dtype, device=device, seed=7, sharpness=1.0)
    batch.query.fill_(30.0)
    batch.key_cache.copy_((0.3 + 0.03 * batch.key_cache.float()) * sign)
    slots = make_lists(batch, [60], [78], 2)
    ints = [torch.tensor(x, dtype=torch.int32, device=device) for x in ([60], [78])]
    workspace = SparseWorkspace.allocate(
        num_heads=4, num_kv_heads=2, head_dim=64, max_requests=1, device=device, tuning=SMALL
    )
    out = run(launch, batch, slots, *ints, workspace)
    want = run(reference, batch, slots, *ints, workspace)
    assert (out.double() - want).norm() / want.norm() < 2e-2


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_any_shape(data):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prefix_lens = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    counts = [data.draw(st.integers(0, n)) for n in prefix_lens]
    seq_lens = [n + data.draw(st.integers(1 if c == 0 else 0, 5)) for n, c in zip(prefix_lens, counts, strict=True)]
    check(device, counts, prefix_lens, seq_lens, heads=6, layer=data.draw(st.booleans()))


def test_public_function_runs_by_device(device):
    batch = make_batch([1, 1], [60, 31], device=device, seed=6)
    counts, prefix_lens = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([10, 5], [58, 31]))
    slots = make_lists(batch, [10, 5], [58, 31], 2)
    workspace = SparseWorkspace.allocate(num_heads=4, num_kv_heads=2, head_dim=64, max_requests=2, device=device)
    out = torch.full_like(batch.query, torch.nan)
    arguments = (batch.query, batch.key_cache, batch.value_cache, slots, counts, prefix_lens, batch.seq_lens, workspace)
    sparse_attention(*arguments, out=out, scale=0.1)
    assert out.isfinite().all()
    with pytest.raises(ValueError, match=r"out must be of shape \[2, 4, 64\]; got \[1, 4, 64\]"):
        sparse_attention(*arguments, out=out[:1], scale=0.1)
    with pytest.raises(ValueError, match=r"slots must be of shape \[2, 1 or 2, any\]; got \[2, 12\]"):
        sparse_attention(*arguments[:3], slots[:, 0, :12], *arguments[4:], out=out, scale=0.1)
