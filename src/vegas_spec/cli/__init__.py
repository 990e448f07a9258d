"""The ``vegas`` command. One file per subcommand; what is shared by all is here and in `errors`."""

from __future__ import annotations

import io
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from vegas_spec import __version__
from vegas_spec.cli import demo, doctor, generate, models, serve, verify
from vegas_spec.cli.errors import COMMANDS, UsageError, run

app = typer.Typer(
    name="vegas",
    help="Lossless long-context decoding: the model drafts over the few KV entries that its verification chose.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Every subcommand registers here. Their modules import torch and transformers inside functions only, so that `--help`
# answers at once.
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("verify")(verify.verify)
app.command("serve", context_settings=serve.SETTINGS)(serve.serve)
app.add_typer(models.app)
app.command("doctor")(doctor.doctor)


def add_brought(app: typer.Typer, command: EntryPoint) -> None:
    """Add a subcommand that another package brings; where that lacks a package, one that says so."""
    try:
        found = command.load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == command.module.partition(".")[0]:
            raise  # a fault of that package's own

        @app.command(command.name, context_settings={"ignore_unknown_options": True})
        def cannot_run(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
            """Cannot run here: a package that it needs is not installed."""
            raise UsageError(
                f"vegas {command.name} needs {missing}, which is not installed; run: pip install {missing}"
            )

        return
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=command.name)
    else:
        app.command(command.name)(found)


# The workbench brings its subcommands so, and nothing here imports it.
for brought in entry_points(group=COMMANDS):
    add_brought(app, brought)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vegas {__version__}")
        raise typer.Exit


@app.callback()
def _vegas(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end a run
    sys.exit(run(app))
