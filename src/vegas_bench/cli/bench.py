"""``vegas bench``: measurements whose results are stored and can be gone on with."""

from __future__ import annotations

import typer

from vegas_bench.cli.bench_acceptance import acceptance
from vegas_bench.cli.bench_kernels import kernels
from vegas_bench.cli.bench_soak import soak
from vegas_bench.cli.bench_throughput import throughput

app = typer.Typer(
    name="bench", help="Measure acceptance, speed and kernels; interrupted runs go on.", no_args_is_help=True
)
for command in (acceptance, throughput, kernels, soak):
    app.command(command.__name__)(command)
