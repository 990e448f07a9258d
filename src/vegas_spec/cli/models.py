"""``vegas models``: the small real models that can be fetched by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vegas_spec.cli.load import fetch_showing_progress
from vegas_spec.models import KnownModel, is_fetched, known_models, model_folder

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app = typer.Typer(name="models", help="List the small models known by name, or fetch one.", invoke_without_command=True)


@app.callback()
def list_models(context: typer.Context, as_json: Json = False) -> None:
    """List the small models known by name, or fetch one."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        typer.echo(json.dumps([_describe(model) for model in known_models()], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "DOWNLOAD", "LICENCE", "FETCHED", "MODEL"):
        table.add_column(heading)
    for model in known_models():
        fetched = "yes" if is_fetched(model.name) else "no"
        table.add_row(model.name, f"{model.num_bytes / 1e9:.2f} GB", model.licence, fetched, model.description)
    Console().print(table)


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `vegas models`.")], as_json: Json = False
) -> None:
    """Download, check and convert a model, once; an interrupted fetch goes on where it was."""
    folder = fetch_showing_progress(name)
    typer.echo(json.dumps({"name": name, "path": str(folder)}) if as_json else folder)


def _describe(model: KnownModel) -> dict[str, Any]:
    fields = dataclasses.asdict(model)
    del fields["packages"]
    return {**fields, "fetched": is_fetched(model.name), "path": str(model_folder(model.name))}
