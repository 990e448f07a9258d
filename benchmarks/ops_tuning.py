"""Launch configurations of the kernels, tried one by one on this GPU: where the tables of `ops/tuning.py` come from.

    python benchmarks/ops_tuning.py verify --cases "Qwen2.5-1.5B 32 x 28K" "gpt-oss-20b 16 x 32K" --out X.json

Configurations are compiled by several processes first, which share Triton's cache on disk; those that do not fit the
device are left out. Then each is timed in a CUDA graph, and its output is compared with that of the shipped one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vegas_bench.measure.kernels.cases import CASES, Case
from vegas_bench.measure.kernels.layer import Layer
from vegas_bench.measure.kernels.timing import graph_milliseconds
from vegas_spec.environment import environment
from vegas_spec.ops.tuning import SparseTuning, VerifyTuning

Tuning = VerifyTuning | SparseTuning
GRID = {
    "verify": [VerifyTuning(*each) for each in itertools.product((32, 64, 128, 256), (2, 3, 4), (4, 8), (1, 2))],
    "sparse": [SparseTuning(*each) for each in itertools.product((32, 64, 128), (2, 3, 4, 5), (4, 8), (1, 2, 3, 4))],
}
SHARE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=GRID)
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], default=[CASES[0].name])
    parser.add_argument("--score", default="weight", choices=["weight", "logit", "none"])
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("launch configurations are measured on a GPU; torch sees none here")
    score = None if arguments.score == "none" else arguments.score
    results = []
    for case in (case for case in CASES if case.name in arguments.cases):
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            jobs = {tuning: pool.submit(compiles, case, tuning, score) for tuning in GRID[arguments.op]}
        fitting = [tuning for tuning, job in jobs.items() if job.exception() is None]
        rows = measure(case, fitting, score)
        results.append({"case": case.name, "tried": len(jobs), "fitting": len(fitting), "rows": rows})
        for row in rows[:8]:
            print(case.name, row, file=sys.stderr, flush=True)
    result = {**environment(), "op": arguments.op, "score": arguments.score, "results": results}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def compiles(case: Case, tuning: Tuning, score: str | None) -> None:
    """Run a configuration once; raises where it does not fit."""
    layer = Layer(case, torch.device("cuda"))
    for call in calls(layer, tuning, score, count=1):
        call()
    torch.cuda.synchronize()


def calls(layer: Layer, tuning: Tuning | None, score: str | None, count: int) -> list[Any]:
    """What to time: one verification, or draft steps over several lists."""
    if isinstance(tuning, SparseTuning) or score == "sparse":
        layer.tune(sparse=tuning if isinstance(tuning, SparseTuning) else None)
        lists, counts = layer.random_lists(SHARE, layer.case.kv_heads, count)
        return [lambda slots=slots: layer.sparse(slots, counts) for slots in lists]
    layer.tune(verify=tuning)
    return [lambda: layer.verify(score)]


def measure(case: Case, tunings: list[Tuning], score: str | None) -> list[dict[str, Any]]:
    """Milliseconds of every configuration and of the shipped one, fastest first."""
    layer = Layer(case, torch.device("cuda"))
    shipped: list[Tuning | None] = [None]
    sparse = bool(tunings) and isinstance(tunings[0], SparseTuning)
    rows = []
    want = None
    for tuning in shipped + tunings:
        torch.manual_seed(0)
        timed = calls(layer, tuning, "sparse" if sparse else score, count=6 if sparse else 1)
        timed[0]()
        out = layer.out[: case.batch].float() if sparse else layer.out.float()
        want = out if want is None else want
        row = {"tuning": "shipped" if tuning is None else asdict(tuning), "milliseconds": graph_milliseconds(timed)}
        rows.append(row | {"error": float((out - want).abs().max())})
    return sorted(rows, key=lambda row: row["milliseconds"])


if __name__ == "__main__":
    main()
