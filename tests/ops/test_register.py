"""What torch is told about the ops: which arguments they write, and that fake tensors pass through."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # torch's own documentation imports it from here

from tests.ops.cases import make_batch
from vegas_spec.ops import SparseWorkspace, VerifyPlan, select_kv, sparse_attention, verify_attention


class Recorder(TorchDispatchMode):
    """Keeps the arguments of every call of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "vegas_spec":
            self.calls[function.name().partition("::")[2]] = (function, arguments)
        return function(*arguments, **(options or {}))


@pytest.fixture(scope="module")
def calls():
    batch = make_batch([3, 2], [60, 31], seed=11)
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "max_requests": 2, "device": torch.device("cpu")}
    plan = VerifyPlan.allocate(max_query_len=3, score_capacity=100, granularity="kv_head", **shape)
    workspace = SparseWorkspace.allocate(**shape)
    counts = torch.tensor([10, 5], dtype=torch.int32)
    slots = torch.zeros(2, 2, 16, dtype=torch.int32)
    cache = batch.key_cache.nan_to_num(), batch.value_cache.nan_to_num()
    plan.prepare(batch.query_start_loc, batch.seq_lens)
    with Recorder() as recorder:
        verify_attention(
            batch.query, *cache, batch.block_table, batch.query_start_loc, batch.seq_lens, plan,
            out=torch.zeros_like(batch.query), scale=0.1, score="weight",
        )  # fmt: skip
        select_kv(plan, counts, batch.block_table, 16, slots=slots, score="weight", tail=3)
        sparse_attention(
            batch.query[:2], *cache, slots, counts, plan.prefix_lens, batch.seq_lens, workspace,
            out=torch.zeros_like(batch.query[:2]), scale=0.1,
        )  # fmt: skip
    return recorder.calls


@pytest.mark.parametrize("name", ["verify_attention", "select_kv", "sparse_attention"])
def test_torch_knows_what_an_op_writes(calls, name):
    function, arguments = calls[name]
    torch.library.opcheck(function, arguments, test_utils=("test_schema", "test_faketensor"))
