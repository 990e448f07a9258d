"""``vegas report``: result files as one HTML page, or what they say of the paper's claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vegas_bench.cli.pages import need
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError


def report(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="JSON files of `vegas bench` and `vegas tune`.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The page to write.", show_default="report.html; claims are printed"),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Also write every plot as SVG and PNG into this folder.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "Vegas report",
    claims: Annotated[
        bool, typer.Option("--claims", help="Instead: what the results say of the paper's claims, as Markdown.")
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Make one self-contained HTML page of results: plots, tables, environment, commands.

    JSON files of something else are named and left out, so that a folder can be given as a whole.
    """
    if not claims:
        need("vegas report", "jinja2", "matplotlib")
    elif plots is not None:
        raise UsageError("--claims draws no plots; leave out --plots")
    from vegas_bench.report.loading import load_sources
    from vegas_bench.results.results import write_whole
    from vegas_bench.results.wording import count_text

    page = Path("report.html") if output is None and not claims else output
    if page is not None and any(path.exists() and path.resolve() == page.resolve() for path in results):
        raise UsageError(f"--output must be another file than the results; got {page}, which is one of them")
    sources, others = load_sources(results)
    for name in others:
        typer.echo(f"vegas: {name} is no result of `vegas bench` or `vegas tune`; left out", err=True)
    if claims:
        from vegas_bench.claims import CLAIMS, markdown

        told = json.dumps([claim.to_dict(sources) for claim in CLAIMS]) if as_json else markdown(sources)
        if page is None:
            typer.echo(told)
        else:
            write_whole(told, page)
        return
    from vegas_bench.report.page import make_report

    if plots is not None and plots.exists() and not plots.is_dir():
        raise UsageError(f"--plots must be a folder; {plots} is a file")
    assert page is not None
    made = make_report(sources, title)
    write_whole(made.html, page)
    files = made.save_plots(plots) if plots is not None else []
    if as_json:
        summary = {"report": str(page), "sections": made.sections, "plots": [str(path) for path in files]}
        typer.echo(json.dumps(summary | {"left_out": others}))
        return
    typer.echo(f"{page}: {count_text(len(sources), 'result')}, {count_text(len(made.plots), 'plot')}")
    if files:
        typer.echo(f"{plots}: {len(files)} files")
