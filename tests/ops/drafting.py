"""sparse_attention's kernel against its plain-torch reference."""

from __future__ import annotations

from unittest import mock

import torch

from tests.ops.cases import make_batch
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


def run(function, batch, slots, counts, prefix_lens, workspace, *, softcap=None, sinks=None, scales=(None, None)):
    """Call the op, run by its kernel (`launch`) or its `reference`, with an output that is poisoned beforehand."""
    query = batch.query.double() if function is reference else batch.query
    out = torch.full_like(query, torch.nan)
    with mock.patch.object(torch.ops.vegas_spec, "sparse_attention", function):
        sparse_attention(
            query, batch.key_cache, batch.value_cache, slots, counts, prefix_lens, batch.seq_lens, workspace,
            out=out, scale=query.shape[-1] ** -0.5, softcap=softcap, sinks=sinks,
            key_scale=scales[0], value_scale=scales[1], validate=False,
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
