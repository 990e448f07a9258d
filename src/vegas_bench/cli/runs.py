"""What long measurements share on the command line: where they store, how far they are, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from vegas_bench.results.wording import count_text
from vegas_spec.cli import flags
from vegas_spec.cli.errors import INTERRUPTED, UsageError
from vegas_spec.config import VegasConfig

if TYPE_CHECKING:
    from vegas_bench.results.journal import Journal
    from vegas_bench.results.results import Result

_SILENT_SECONDS = 30.0  # between two lines of progress where no terminal shows a bar; chosen by hand


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where a measurement is stored, and whether it begins anew."""

    out: Path = Path("result.json")
    csv: Path | None = None
    restart: bool = False

    def check(self) -> None:
        """Refuse files that cannot be written; see `check_outputs`."""
        check_outputs(out=self.out, csv=self.csv)

    @contextlib.contextmanager
    def journal(self, kind: str, model: str, settings: dict[str, Any], console: Console) -> Iterator[Journal]:
        """Open the journal beside the result; on Ctrl-C say how to go on, and exit with 130.

        Parameters
        ----------
        kind, model, settings : str, str, dict
            With hardware and Python, whose library is a workload, what a run must share with one that it goes on with.
            A run that does go on is said to in the settings.
        console : Console
            For messages.

        """
        from vegas_bench.results.journal import Journal
        from vegas_spec.environment import hardware

        run = {"kind": kind, "model": model, "hardware": hardware(), "python": platform.python_version(), **settings}
        with Journal(self.beside("journal"), run, fresh=self.restart) as journal:
            if not self.restart:
                journal.refuse_to_replace(self.out)
            if not journal.locked:
                say(console, f"files have no locks here: begin no second run with --out {self.out}", style="yellow")
            if journal.rows:
                settings["went_on_after_an_interruption"] = True
                going_on = f"going on with {count_text(len(journal.rows), 'measurement')} of {journal.path}"
                say(console, going_on, style="dim")
            try:
                yield journal
            except KeyboardInterrupt:
                found = len(journal.rows)
                kept = f"{count_text(found, 'measurement')} {'is' if found == 1 else 'are'} kept in {journal.path}"
                say(console, f"\ninterrupted; {kept}. Repeat the command to go on.")
                raise typer.Exit(INTERRUPTED) from None

    def beside(self, ending: str) -> Path:
        """Give a file beside the result."""
        return self.out.with_name(f"{self.out.name}.{ending}")

    def store(self, result: Result, journal: Journal, console: Console) -> None:
        """Store a finished result; its journal has served."""
        journal.finish(result, self.out, self.csv)
        say(console, f"stored in {self.out}{f' and {self.csv}' if self.csv else ''}", style="dim")


STORING = flags.Group(
    of=Storing,
    make=Storing,
    panel="Result",
    help={
        "out": "Where the result goes, as JSON; its journal lies beside it.",
        "csv": "The rows as CSV, too.",
        "restart": "Begin anew, even if a run was interrupted here.",
    },
)
SAMPLING = flags.SAMPLING.only("max_tokens", "temperature", "seed", "ignore_eos", max_tokens=128, seed=0)
"""How a measurement samples: the same each time."""
Attention = Annotated[
    str,
    typer.Option("--attention", help="torch, or kernels (half precision, GPU).", rich_help_panel=flags.LOADING.panel),
]
Engine = Annotated[
    str, typer.Option("--engine", help="embedded, or vllm (in a process of its own for each side or setting).")
]
_WORKLOADS = "source, texts, needle, multi-key, aime25, codeelo, longbench-v2 or jsonl"
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
BUDGET, GAMMA = str(VegasConfig.kv_budget), str(VegasConfig.num_speculative_tokens)
"""Defaults of the two above."""


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


def names(text: str, option: str, what: str = "names") -> list[str]:
    """Read names that are separated by commas.

    Raises
    ------
    UsageError
        If there are none.

    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError(f"{option} must be {what} separated by commas; got {text!r}")
    return found


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
    what = "whole numbers" if kind is int else "numbers"
    values = []
    for part in names(text, option, what):
        try:
            values.append(kind(part))
        except ValueError:
            raise UsageError(f"{option} must be {what} separated by commas; got {part!r}") from None
    return values


def note(console: Console, settings: dict[str, Any], sentences: Sequence[str]) -> None:
    """Say what a run does otherwise than it was told to, and keep it with its settings."""
    settings.setdefault("notes", []).extend(sentences)
    for sentence in sentences:
        say(console, f"note: {sentence}", style="yellow")


def store_json(content: dict[str, Any], out: Path, console: Console) -> None:
    """Store a result that is of no kind that reports read."""
    from vegas_bench.results.results import write_whole

    write_whole(json.dumps(content, indent=1) + "\n", out)
    say(console, f"stored in {out}", style="dim")
