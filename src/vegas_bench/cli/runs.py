"""What long measurements share on the command line: where they store, how far they are, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from vegas_spec.cli.errors import INTERRUPTED, UsageError
from vegas_spec.cli.options import read_json_object

if TYPE_CHECKING:
    from vegas_bench.results.journal import Journal
    from vegas_bench.results.results import Result

_RESULT = "Result"

Out = Annotated[
    Path,
    typer.Option("--out", help="Where the result goes, as JSON; its journal lies beside it.", rich_help_panel=_RESULT),
]
Csv = Annotated[Path | None, typer.Option("--csv", help="The rows as CSV, too.", rich_help_panel=_RESULT)]
Restart = Annotated[
    bool,
    typer.Option("--restart", help="Begin anew, even if a run was interrupted here.", rich_help_panel=_RESULT),
]
Attention = Annotated[
    str, typer.Option("--attention", help="torch, or kernels (half precision, GPU).", rich_help_panel="Loading")
]
EngineArgs = Annotated[
    str,
    typer.Option("--engine-args", help="JSON, further arguments of vllm.LLM.", rich_help_panel="Loading"),
]
Engine = Annotated[
    str, typer.Option("--engine", help="embedded, or vllm (in a process of its own for each side or setting).")
]
_WORKLOADS = "source, needle, multi-key, aime25, codeelo, longbench-v2 or jsonl"
_WORKLOAD_FORM = "NAME[:KEY=VALUE,...]"
Workload = Annotated[
    str, typer.Option("--workload", metavar=_WORKLOAD_FORM, help=f"What the prompts are: {_WORKLOADS}.")
]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", metavar=_WORKLOAD_FORM, help=f"What the prompts are: {_WORKLOADS}; may be repeated."),
]
Budgets = Annotated[str, typer.Option("--budgets", help="Values of kv_budget, by commas.")]
Gammas = Annotated[str, typer.Option("--gammas", help="Drafted tokens per iteration, by commas.")]
MinPromptTokens = Annotated[int | None, typer.Option("--min-prompt-tokens", help="Of each prompt.")]
MaxPromptTokens = Annotated[int | None, typer.Option("--max-prompt-tokens", help="Of each prompt.")]

_SILENT_SECONDS = 30.0


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: brackets in the name of a file are no markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def check_outputs(**paths: Path | None) -> None:
    """Refuse files that cannot be written, or that would overwrite each other, before hours of measurement.

    Parameters
    ----------
    **paths : Path or None
        By the flag that names them; None is not written.

    Raises
    ------
    UsageError
        Naming the flag.

    """
    seen: dict[Path, str] = {}
    for flag, path in paths.items():
        if path is None:
            continue
        try:
            if path.is_dir():
                raise UsageError(f"--{flag} must be a file; {path} is a folder")
            folder = next(each for each in path.absolute().parents if each.exists())
        except OSError as error:
            raise UsageError(f"--{flag} cannot be written: {error.strerror}") from error
        if not (folder.is_dir() and os.access(path if path.exists() else folder, os.W_OK)):
            raise UsageError(f"--{flag} cannot be written: {path}")
        if (other := seen.setdefault(path.resolve(), flag)) != flag:
            raise UsageError(f"--{other} and --{flag} must be different files; got {path} for both")


def names(text: str, option: str) -> list[str]:
    """Read names that are separated by commas.

    Raises
    ------
    UsageError
        If there are none.

    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError(f"{option} must be names separated by commas; got {text!r}")
    return found


@contextlib.contextmanager
def journal_of(out: Path, run: Mapping[str, Any], restart: bool, console: Console) -> Iterator[Journal]:
    """Open the journal beside a result; on Ctrl-C say how to go on, and exit with 130.

    Parameters
    ----------
    out : Path
        Where the result will be stored.
    run : mapping
        What a run must share with one that it goes on with.
    restart : bool
        Begin anew.
    console : Console
        For messages.

    """
    from vegas_bench.results.journal import Journal
    from vegas_bench.results.wording import count_text

    with Journal(out.with_name(f"{out.name}.journal"), run, fresh=restart) as journal:
        if not restart:
            journal.refuse_to_replace(out)
        if not journal.locked:
            say(console, f"files have no locks here: begin no second run with --out {out}", style="yellow")
        found = len(journal.rows)
        if found:
            say(console, f"going on with {count_text(found, 'measurement')} of {journal.path}", style="dim")
        try:
            yield journal
        except KeyboardInterrupt:
            found = len(journal.rows)
            kept = f"{count_text(found, 'measurement')} {'is' if found == 1 else 'are'} kept in {journal.path}"
            say(console, f"\ninterrupted; {kept}. Repeat the command to go on.")
            raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def progress_of(console: Console) -> Iterator[Callable[[str, float, float], None]]:
    """Show what is running and the time left; where there is no terminal, a line now and then."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=600.0,
    )
    task = bar.add_task("", total=None)
    said = ("", 0.0)

    def watch(label: str, done: float, total: float) -> None:
        nonlocal said
        bar.update(task, description=label, completed=done, total=total)
        now = time.monotonic()
        if not console.is_terminal and (label != said[0] or now - said[1] > _SILENT_SECONDS):
            said = (label, now)
            console.print(f"[{done / max(total, 1e-9):4.0%}] {label}", style="dim", highlight=False, markup=False)

    with bar:
        yield watch


def store(result: Result, journal: Journal, out: Path, csv: Path | None, console: Console) -> None:
    """Store a finished result; its journal has served."""
    journal.finish(result, out, csv)
    say(console, f"stored in {out}{f' and {csv}' if csv else ''}", style="dim")


def print_table(table: Table) -> None:
    """Print a table on standard output; where that is no terminal, as wide as it needs to be."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


def numbers(text: str, option: str, kind: type[int] | type[float]) -> list[Any]:
    """Read numbers that are separated by commas.

    Raises
    ------
    UsageError
        If one is none, or there are none.

    """
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} must be {what} separated by commas; got {text!r}")
    return values


def read_engine_args(engine: str, text: str) -> dict[str, Any]:
    """Read vLLM's further arguments.

    Raises
    ------
    UsageError
        If they are no JSON object, or the engine is not vLLM.

    """
    arguments = read_json_object("--engine-args", text)
    if arguments and engine != "vllm":
        raise UsageError("--engine-args are vLLM's; give --engine vllm, or leave them out")
    return arguments


def vllm_arguments(
    place: str, dtype: str, revision: str | None, hf_overrides: str | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Gather the arguments of `vllm.LLM` that the flags of loading stand for, and what else was given."""
    arguments: dict[str, Any] = {"model": place, "dtype": dtype}
    if revision:
        arguments["revision"] = revision
    if hf_overrides:
        arguments["hf_overrides"] = read_json_object("--hf-overrides", hf_overrides)
    return {**arguments, **more}
