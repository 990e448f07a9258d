"""sparse_attention against its plain-torch reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ops.cases import LAYOUTS, make_batch
from tests.ops.drafting import SMALL, check, launch, make_lists, reference, run
from vegas_spec.ops import SparseWorkspace, sparse_attention


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
