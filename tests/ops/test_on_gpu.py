"""What only a GPU shows: long contexts, every head dimension with every group, and CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from tests.ops import drafting, selection, verification
from tests.ops.cases import LAYOUTS, make_batch
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, truncate_logits, verify_attention
from vegas_spec.ops.truncate_logits import reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

SHAPES = ((32, 8, 128), (16, 8, 128), (64, 8, 64), (14, 2, 64), (28, 4, 128), (16, 1, 128), (8, 8, 96), (16, 8, 256))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_long_ragged_verification(device, heads, kv_heads, head_dim):
    query_lens, seq_lens = [7, 7, 0, 1, 7, 3], [9000, 700, 0, 4097, 16_384, 3]
    batch = make_batch(query_lens, seq_lens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, device=device)
    verification.check(batch, device, score="weight")
    verification.check(batch, device, score="logit")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn])
def test_layouts_of_a_long_verification(device, layout, cache_dtype):
    batch = make_batch(
        [7, 7], [3000, 5000], heads=8, head_dim=128, layout=layout, cache_dtype=cache_dtype, device=device
    )
    scales = (None, None) if cache_dtype is None else tuple(torch.tensor([s], device=device) for s in (0.5, 2.0))
    verification.check(batch, device, scales=scales)


def test_long_selection(device):
    prefix_lens = [131_072, 20_000, 1, 4096]
    plan = selection.make_plan(prefix_lens, device, kv_heads=4)
    selection.check(plan, prefix_lens, [6554, 20_000, 1, 256], device, tail=13)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_long_lists(device, heads, kv_heads, head_dim):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    drafting.check(device, [900, 3, 5000], [4000, 3, 9000], [4006, 3, 9001], **shape)


@pytest.mark.parametrize("granularity", ["kv_head", "layer"])
def test_one_graph_serves_any_lengths(device, granularity):
    """Captured once, replayed with other lengths: the same bits as eager calls, and nothing stale."""
    batch = make_batch([4, 4, 4], [3000, 700, 1200], heads=8, head_dim=128, device=device)
    plan = VerifyPlan.allocate(
        num_heads=8, num_kv_heads=2, head_dim=128, max_query_len=4, max_requests=3, score_capacity=6000,
        granularity=granularity, device=device,
    )  # fmt: skip
    workspace = SparseWorkspace.allocate(num_heads=8, num_kv_heads=2, head_dim=128, max_requests=3, device=device)
    out, draft = torch.empty_like(batch.query), torch.empty_like(batch.query[:3])
    slots = torch.zeros(3, plan.groups, 300, dtype=torch.int32, device=device)
    counts = torch.tensor([200, 30, 256], dtype=torch.int32, device=device)

    def step() -> None:
        plan.prepare(batch.query_start_loc, batch.seq_lens)
        caches = (batch.key_cache, batch.value_cache)
        verify_attention(
            batch.query, *caches, batch.block_table, batch.query_start_loc, batch.seq_lens, plan,
            out=out, scale=0.1, score="weight",
        )  # fmt: skip
        select_kv(plan, counts, batch.block_table, 16, slots=slots, score="weight", tail=9)
        sparse_attention(
            batch.query[:3], *caches, slots, counts, plan.prefix_lens, batch.seq_lens, workspace, out=draft, scale=0.1
        )

    def result() -> list[torch.Tensor]:
        return [out.clone(), draft.clone(), slots.clone()]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ([3000, 700, 1200], [40, 699, 5], [2999, 4, 1100]):
        batch.seq_lens.copy_(torch.tensor(lengths))
        slots.zero_()
        step()
        want = result()
        for tensor in (out, draft, slots):
            tensor.zero_()
        graph.replay()
        for got, expected in zip(result(), want, strict=True):
            assert torch.equal(got, expected)


def test_truncation_in_a_graph(device):
    """A real vocabulary, captured once and replayed with other logits and other wishes."""
    logits = torch.empty(32, 152_000, dtype=torch.bfloat16, device=device)
    states = torch.arange(32, device=device)
    temperature, top_p, min_p = (torch.ones(32, device=device) for _ in range(3))
    top_k = torch.full((32,), 152_000, dtype=torch.int32, device=device)
    min_p.zero_()

    def fill(seed: int) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        logits.copy_(3 * torch.randn(logits.shape, generator=generator, device=device))
        return logits.clone()

    fill(0)
    truncate_logits(logits, states, temperature, top_k, top_p, min_p)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        truncate_logits(logits, states, temperature, top_k, top_p, min_p)
    for seed, (heat, count, mass, least) in enumerate(
        [(0.7, 20, 0.95, 0.0), (1.0, 152_000, 1.0, 0.0), (0.5, 9, 1, 0.1)]
    ):
        expected = fill(seed)
        for tensor, value in ((temperature, heat), (top_k, count), (top_p, mass), (min_p, least)):
            tensor.fill_(value)
        graph.replay()
        reference(expected, states, temperature, top_k, top_p, min_p)
        # Sums are taken in another order: a threshold may be its neighbour.
        assert ((logits > -torch.inf).sum(-1) - (expected > -torch.inf).sum(-1)).abs().max() <= 2
