"""Compiles every kernel for GPUs that are not here, and prints what came of it as JSON; see `test_compile`.

The functions that launch kernels on a GPU run with the options of that GPU; a stand-in takes the place of each Triton
kernel and has it compiled instead of run. In a process of its own: that of the tests has Triton's interpreter.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.ops import drafting, selection, verification
from tests.ops.cases import make_batch
from vegas_spec.ops import tuning
from vegas_spec.ops.plan import VerifyPlan
from vegas_spec.ops.sparse_attention import SparseWorkspace

SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes that one program may have, by compute capability (CUDA C++ Programming Guide, technical specifications)."""

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "enable_fp_fusion")


class Compiling:
    """In the place of a Triton kernel: ``kernel[grid](...)`` compiles it for a GPU."""

    def __init__(self, kernel: Any, capability: int, found: list[dict[str, Any]]) -> None:
        self.kernel, self.capability, self.found = kernel, capability, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.compile

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Specialise the arguments as a launch does: ones are constants, multiples of 16 are known as such."""
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        values = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            name, value = parameter.name, values[parameter.name]
            if parameter.is_constexpr or (type(value) is int and value == 1):
                signature[name], constants[name] = "constexpr", value
                continue
            address = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if isinstance(value, torch.Tensor):
                signature[name] = "*" + TYPES[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"
            if isinstance(address, int) and address % 16 == 0:
                attributes[index,] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
        self.found.append(
            {
                "kernel": self.kernel.__name__,
                "capability": self.capability,
                "shared": compiled.metadata.shared,
                "limit": SHARED_MEMORY[self.capability],
            }
        )


@contextmanager
def gpu(capability: int, found: list[dict[str, Any]]) -> Iterator[None]:
    """While inside, the ops believe in this GPU, and their kernels are compiled."""
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=divmod(capability, 10)):
        # Past its cache, which is to know nothing of a GPU that is not there.
        options = tuning.launch_options.__wrapped__(torch.device("cuda"))
    changes: dict[str, dict[str, Any]] = {
        "plan": {"shared_memory": lambda _: SHARED_MEMORY[capability]},
        "sparse_attention": {"shared_memory": lambda _: SHARED_MEMORY[capability], "launch_options": lambda _: options},
        "verify_attention": {"launch_options": lambda _: options},
        "select_kv": {"launch_options": lambda _: options},
        "truncate_logits": {},
    }
    patches = []
    for name, replaced in changes.items():
        module = importlib.import_module(f"vegas_spec.ops.{name}")
        kernels = {each: kernel for each, kernel in vars(module).items() if each.endswith("_kernel")}
        replaced |= {each: Compiling(kernel, capability, found) for each, kernel in kernels.items()}
        patches += [mock.patch.object(module, each, value) for each, value in replaced.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def verify(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16, **options: Any) -> VerifyPlan:
    """Compile the verification of 7 rows with the configuration of this GPU, and what lays it out."""
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "layout": "joint_nhd"}
    batch = make_batch([7, 7], [40, 20], dtype=dtype, cache_dtype=options.pop("cache", None), **shape)
    settings = {name: options.pop(name) for name in ("window", "granularity") if name in options}
    plan = verification.make_plan(batch, torch.device("cpu"), tuning=None, max_query_len=7, **settings)
    plan.launch(batch.query_start_loc, batch.seq_lens)
    verification.run(verification.launch, batch, plan, **options)
    return plan


def select(granularity: str, lookahead: float = 0.0) -> None:
    """Compile a selection, and the ranking that one per layer, or one that looks ahead, begins with."""
    plan = selection.make_plan([40, 30], torch.device("cpu"), granularity=granularity, lookahead=lookahead)
    counts, table = torch.tensor([20, 20], dtype=torch.int32), torch.zeros((2, 4), dtype=torch.int32)
    selection.run(selection.launch, plan, counts, table, tail=13)


def draft(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16, **options: Any) -> None:
    """Compile a draft step's attention."""
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "layout": "joint_nhd"}
    batch = make_batch([1, 1], [40, 20], dtype=dtype, cache_dtype=options.pop("cache", None), **shape)
    slots = drafting.make_lists(batch, [16, 8], [30, 15], kv_heads, 0)
    ints = [torch.tensor(each, dtype=torch.int32) for each in ([16, 8], [30, 15])]
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "max_requests": 2}
    workspace = SparseWorkspace.allocate(**sizes, device="cpu")
    drafting.run(drafting.launch, batch, slots, *ints, workspace, **options)


def truncate() -> None:
    """Compile the truncation of a draft's logits."""
    module = importlib.import_module("vegas_spec.ops.truncate_logits")
    floats, top_k = torch.ones(3, 2), torch.ones(2, dtype=torch.int32)
    module.launch(torch.ones(2, 152_000, dtype=torch.bfloat16), torch.arange(2), floats[0], top_k, floats[1], floats[2])


def main() -> None:
    scales, fp8 = (torch.ones(1), torch.ones(1)), torch.float8_e4m3fn
    found: list[dict[str, Any]] = []
    with gpu(90, found):
        verify(32, 8, 128)
        draft(32, 8, 128)
        select("kv_head")
        select("layer")
        select("kv_head", lookahead=0.5)
        truncate()
    with gpu(80, found):
        verify(28, 4, 128, dtype=torch.float16, score="logit", rows="all")
        draft(28, 4, 128, dtype=torch.float16)
        select("kv_head")
        select("layer", lookahead=0.7)
    with gpu(86, found):
        verify(16, 8, 256, softcap=50.0)
        verify(16, 8, 256, score=None, window=1024)
        draft(16, 8, 256, softcap=50.0)
    with gpu(89, found):
        verify(32, 8, 128, cache=fp8, scales=scales)
        draft(32, 8, 128, cache=fp8, scales=scales)
    with gpu(100, found):
        verify(64, 8, 64, sinks=torch.ones(64), granularity="layer")
        draft(64, 8, 64, sinks=torch.ones(64))
        select("layer")
    with gpu(120, found):
        verify(14, 2, 64)
        draft(14, 2, 64)
        truncate()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
