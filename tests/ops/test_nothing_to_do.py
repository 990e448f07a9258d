"""A step without requests, and one of padding only: the kernel and the reference of every op leave everything alone."""

from __future__ import annotations

import pytest
import torch

from tests.ops import drafting, selection, verification
from tests.ops.cases import make_batch
from vegas_spec.ops import SparseWorkspace
from vegas_spec.ops.record import UNITS
from vegas_spec.ops.truncate_logits import launch as truncate
from vegas_spec.ops.truncate_logits import reference as truncate_reference

BATCHES = {"no requests": ([], []), "padding": ([0, 0, 0], [0, 5, 0])}


@pytest.fixture(params=list(BATCHES))
def batch(request, device):
    return make_batch(*BATCHES[request.param], device=device)


@pytest.fixture(params=["launch", "reference"])
def by(request):
    """Which of an op's two implementations."""
    return request.param


@pytest.fixture(params=["kv_head", "layer"])
def plan(request, by, batch, device):
    """Prepared for the batch, after a step that had work for all."""
    before = make_batch([3, 2, 3], [90, 40, 33], device=device)
    plan = verification.make_plan(before, device, granularity=request.param)
    plan.prepare(before.query_start_loc, before.seq_lens)
    assert (plan.programs[:, UNITS.value] > 0).any()
    getattr(plan, by)(batch.query_start_loc, batch.seq_lens)
    return plan


def test_no_program_has_work(plan):
    assert (plan.programs[:, UNITS.value] <= 0).all()
    assert not plan.dropped.any()


def test_verification(plan, by, batch):
    out, lse, levels, histogram = verification.run(getattr(verification, by), batch, plan)
    assert out.shape[0] == lse.shape[0] == 0
    assert (levels == -1).all()
    assert not histogram.any()


def test_selection(plan, by, batch):
    slots, _ = selection.run(
        getattr(selection, by), plan, torch.full_like(batch.seq_lens, 4), batch.block_table, width=8, tail=3
    )
    assert (slots == selection.POISON).all()


def test_drafting(by, batch, device):
    requests = len(batch.seq_lens)
    workspace = SparseWorkspace.allocate(num_heads=4, num_kv_heads=2, head_dim=64, max_requests=3, device=device)
    batch.query = torch.zeros(requests, 4, 64, dtype=torch.bfloat16, device=device)
    slots, lens = torch.zeros(requests, 2, 8, dtype=torch.int32, device=device), torch.zeros_like(batch.seq_lens)
    out = drafting.run(getattr(drafting, by), batch, slots, lens, lens, workspace)
    assert out.isnan().all()


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("function", [truncate, truncate_reference])
def test_truncation(device, function, rows):
    """Rows without a request, where there are no requests at all."""
    logits = torch.zeros(rows, 50, device=device)
    states, none = torch.full((rows,), -1, device=device), torch.zeros(0, device=device)
    function(logits, states, none, none.int(), none, none)
    assert not logits.any()
