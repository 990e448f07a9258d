"""``vegas report``: result files as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vegas_bench.cli.pages import need, write_page
from vegas_spec.cli import options as flags
from vegas_spec.cli.errors import UsageError


def report(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="JSON files of `vegas bench` and `vegas tune`.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Also write every plot as SVG and PNG into this folder.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "Vegas report",
    as_json: flags.Json = False,
) -> None:
    """Make one self-contained HTML page of results: plots, tables, environment, commands.

    JSON files of something else are named and left out, so that a folder can be given as a whole.
    """
    need("vegas report", "jinja2", "matplotlib")
    from vegas_bench.report.loading import load_sources
    from vegas_bench.report.page import make_report

    if any(path.exists() and path.resolve() == output.resolve() for path in results):
        raise UsageError(f"--output must be another file than the results; got {output}, which is one of them")
    sources, others = load_sources(results)
    for name in others:
        typer.echo(f"vegas: {name} is no result of `vegas bench` or `vegas tune`; left out", err=True)
    if plots is not None and plots.exists() and not plots.is_dir():
        raise UsageError(f"--plots must be a folder; {plots} is a file")
    made = make_report(sources, title)
    write_page(made.html, output)
    files = made.save_plots(plots) if plots is not None else []
    if as_json:
        summary = {"report": str(output), "sections": made.sections, "plots": [str(path) for path in files]}
        typer.echo(json.dumps(summary | {"left_out": others}))
        return
    typer.echo(f"{output}: {len(sources)} result{'s' * (len(sources) != 1)}, {len(made.plots)} plots")
    if files:
        typer.echo(f"{plots}: {len(files)} files")
