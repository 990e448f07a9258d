"""``vegas bench kernels``: what the kernels take on this GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vegas_bench.cli import runs
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.config import check_choice

if TYPE_CHECKING:
    from vegas_bench.results.results import KernelRow

_FASTEST = 8  # configurations that are shown of those that were tried


@flags.with_groups
def kernels(
    only: Annotated[str | None, typer.Option("--only", help="Cases whose name contains this.")] = None,
    tune: Annotated[
        str | None,
        typer.Option("--tune", help="Instead, try launch configurations of a kernel: verify or sparse."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="With --tune, processes that compile.")] = 8,
    as_json: flags.Json = False,
    *,
    storing: Annotated[runs.Storing, runs.STORING.without(out=Path("kernels.json"))],
) -> None:
    """Time the kernels of one layer at several shapes, beside FlashAttention 3, torch.topk and the bandwidth floor.

    Needs a CUDA GPU; FlashAttention is measured where vLLM is installed.
    """
    import torch

    from vegas_bench.measure.kernels.cases import BLOCK_SIZE, CASES, QUERY_LEN
    from vegas_bench.results.results import KernelRow, Result

    cases = [case for case in CASES if only is None or only in case.name]
    if not cases:
        raise UsageError(f"no case contains {only!r}; the cases are {', '.join(case.name for case in CASES)}")
    if tune is not None:
        check_choice("--tune", tune, ["verify", "sparse"])
    if not torch.cuda.is_available():
        raise UsageError(
            "the kernels are measured on a CUDA GPU, and torch sees none; on a CPU they run in Triton's interpreter, "
            "whose times say nothing (`vegas bench throughput` measures the engine there)"
        )
    storing.check()
    console = Console(stderr=True)
    # Here, since the kernels need Triton, which a torch for CPUs does not bring.
    from vegas_bench.measure.kernels.bench import measure_case
    from vegas_bench.measure.kernels.timing import copy_bandwidth, graph_milliseconds
    from vegas_bench.measure.kernels.tune import fitting, time_tunings

    settings: dict[str, Any] = {"dtype": "bfloat16", "query_rows": QUERY_LEN, "page_size": BLOCK_SIZE}
    settings |= {"tuned": tune} if tune else {}
    name, device = "one layer of each model", torch.device("cuda")
    with storing.journal("kernels", name, settings, console) as journal:
        with runs.progress_of(console) as watch:
            if "bandwidth" not in journal:
                watch("copy bandwidth", 0, len(cases))
                journal.append("bandwidth", copy_bandwidth())
            for number, case in enumerate(cases):
                watch(case.name, number, len(cases))
                if case.name in journal:
                    continue
                if tune:
                    row = time_tunings(case, tune, fitting(case, tune, jobs), device, graph_milliseconds)
                else:
                    row = measure_case(case, journal["bandwidth"], device, graph_milliseconds)
                journal.append(case.name, dataclasses.asdict(row))
                torch.cuda.empty_cache()
        rows = [journal.row(case.name, KernelRow) for case in cases]
        settings |= {"copy_bandwidth": journal["bandwidth"]}
        result = Result.of_this_run("kernels", name, settings, rows)
        storing.store(result, journal, console)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
    else:
        runs.print_table(tuning_table(rows) if tune else table(rows))


def tuning_table(rows: Sequence[KernelRow]) -> Table:
    """Show the fastest configurations of each case, and the one that the kernel's op chooses."""
    shown = Table(title="launch configurations", title_justify="left", box=SIMPLE_HEAD)
    for column in ("case", "tried", "us", "configuration"):
        shown.add_column(column, justify="right" if column in ("tried", "us") else "left")
    for row in rows:
        ranked = sorted(row.milliseconds.items(), key=lambda item: item[1])
        for place, (name, milliseconds) in enumerate(ranked):
            if place < _FASTEST or name == "shipped":
                shown.add_row(row.case, str(len(ranked)), f"{1e3 * milliseconds:.1f}", name)
    return shown


def table(rows: Sequence[KernelRow]) -> Table:
    """Show times of verification over FlashAttention's (or the floor's), and of drafts over their floor."""
    shown = Table(title="kernels of one layer", title_justify="left", box=SIMPLE_HEAD)
    shown.add_column("case")
    for column in ("floor ms", "FA3 ms", "verify", "+ scores", "+ select", "select us", "topk us", "sparse 5 %", "7 %"):
        shown.add_column(column, justify="right")
    for row in rows:
        times = row.milliseconds
        base = times.get("fa3", times["floor"])
        shown.add_row(
            row.case,
            f"{times['floor']:.3f}",
            f"{times['fa3']:.3f}" if "fa3" in times else "",
            *(f"{times[name] / base:.3f}" for name in ("verify_plain", "verify_weight", "verify_select_weight")),
            *(f"{1e3 * times[name]:.1f}" for name in ("select_weight", "torch_topk")),
            *(f"{times[f'sparse_kv_head_{share}'] / times[f'sparse_floor_{share}']:.2f}" for share in ("5%", "7%")),
        )
    reference = "FlashAttention 3" if any("fa3" in row.milliseconds for row in rows) else "the bandwidth floor"
    shown.caption = f"verifications over {reference}; sparse over its own floor"
    return shown
