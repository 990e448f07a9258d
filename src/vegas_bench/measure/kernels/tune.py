"""Launch configurations of a kernel, tried one by one on this GPU: where `vegas_spec.ops.tuning` has its own from.

They are compiled by several processes first, which share Triton's cache on disk; those that do not fit the device are
left out. Then each is timed.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from vegas_bench.measure.kernels.bench import LISTS
from vegas_bench.measure.kernels.cases import Case
from vegas_bench.measure.kernels.layer import Layer
from vegas_bench.measure.kernels.timing import Milliseconds
from vegas_bench.results.results import KernelRow
from vegas_spec.ops.tuning import SparseTuning, VerifyTuning

Tuning = VerifyTuning | SparseTuning

GRID: dict[str, list[Tuning]] = {
    "verify": [VerifyTuning(*each) for each in itertools.product((32, 64, 128, 256), (2, 3, 4), (4, 8), (1, 2))],
    "sparse": [SparseTuning(*each) for each in itertools.product((32, 64, 128), (2, 3, 4, 5), (4, 8), (1, 2, 3, 4))],
}
"""What is tried, by kernel. Chosen by hand."""

SHIPPED = "shipped"
"""Name of the configuration that the kernel's op chooses by itself."""

SHARE = 0.05
"""Of the cache, that a draft step reads: the default budget."""

LARGEST_DIFFERENCE = 0.02
"""Of two outputs in bfloat16 that are the same but for rounding. Chosen by hand."""


def fitting(case: Case, kernel: str, jobs: int) -> list[Tuning]:
    """Compile every configuration, in that many processes, and give those that fit the device."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        tried = {tuning: pool.submit(_run_once, case, kernel, tuning) for tuning in GRID[kernel]}
    return [tuning for tuning, job in tried.items() if job.exception() is None]


def time_tunings(
    case: Case, kernel: str, tunings: Sequence[Tuning], device: torch.device, milliseconds: Milliseconds
) -> KernelRow:
    """Time configurations and the shipped one; those that give something else than that are left out."""
    layer, times, expected = Layer(case, device), dict[str, float](), None
    for tuning in (None, *tunings):
        torch.manual_seed(0)  # the same lists of entries for all
        calls = _calls(layer, kernel, tuning)
        calls[0]()
        out = layer.out[: case.batch if kernel == "sparse" else None].float()
        expected = out if expected is None else expected
        if float((out - expected).abs().max()) <= LARGEST_DIFFERENCE:
            name = SHIPPED if tuning is None else ", ".join(f"{key} {value}" for key, value in asdict(tuning).items())
            times[name] = milliseconds(calls)
    return KernelRow(case=case.name, batch=case.batch, context=case.context, milliseconds=times)


def _run_once(case: Case, kernel: str, tuning: Tuning) -> None:
    """Raise where a configuration does not fit."""
    for call in _calls(Layer(case, torch.device("cuda")), kernel, tuning):
        call()
    torch.cuda.synchronize()


def _calls(layer: Layer, kernel: str, tuning: Tuning | None) -> list[Any]:
    """Give what is timed: a verification with scores, or draft steps over several lists."""
    if kernel == "verify":
        layer.tune(verify=tuning)  # type: ignore[arg-type]
        return [partial(layer.verify, "weight")]
    layer.tune(sparse=tuning)  # type: ignore[arg-type]
    lists, counts = layer.random_lists(SHARE, layer.case.kv_heads, LISTS)
    return [partial(layer.sparse, slots, counts) for slots in lists]
