"""``vegas serve``: ``vllm serve`` with Vegas on."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Annotated

import typer
from rich.console import Console

from vegas_spec.cli import flags
from vegas_spec.cli.load import place_of

SETTINGS = {"ignore_unknown_options": True}
"""Of the subcommand: what is not ours is vLLM's."""

_DRAFTING = dataclasses.replace(
    # What is not given here may stand in --speculative-config or in a file.
    flags.DRAFTING.saying(
        rows="Verified rows that score: ends or all.",
        adaptive="Adapt the number of drafts to what is accepted; the one given is the most.",
    ),
    shows_defaults=False,
)

_BESIDE = ("no_adaptive", "fall_back", "no_fall_back", "dry_run")
_OURS = [f"--{name.replace('_', '-')}" for name in (*_DRAFTING.names, *_BESIDE)]


@flags.with_groups
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [VLLM OPTIONS]",
            help="A name of `vegas models`, a hub id or a folder; and what `vllm serve --help=all` lists.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the vllm command instead of running it.")] = False,
    *,
    drafting: Annotated[flags.Drafting, _DRAFTING],
    fall_back: Annotated[
        bool | None,
        typer.Option(
            "--fall-back/--no-fall-back",
            help="Decode plainly where drafting cannot gain.",
            rich_help_panel=_DRAFTING.panel,
        ),
    ] = None,
) -> None:
    """Serve a model with vLLM, drafting with Vegas.

    MODEL and all options that are not listed here go to `vllm serve`. Its
    --speculative-config is merged with the options below, which win; so is
    --config FILE, if `vegas tune` wrote it (a .yaml goes to vLLM).
    """
    from vegas_spec import config_file
    from vegas_spec.vllm.start import serve as vllm_serve

    given = drafting.given | ({} if fall_back is None else {"fall_back": fall_back})
    passed, path = vllm_serve.take_config_file(arguments or [])
    tuned = config_file.ConfigFile({}) if path is None else config_file.load(path)
    passed = vllm_serve.serve_arguments(passed, given, tuned.options)
    if not dry_run:
        vllm_serve.check_vllm()
    unchecked = vllm_serve.check_arguments(passed, _OURS)
    command = shlex.join(["vllm", "serve", *passed])
    if dry_run:
        typer.echo(command)
        if unchecked:
            typer.echo(f"vegas: {unchecked}", err=True)
        return
    if tuned.tuned_on and passed:
        for sentence in tuned.warnings(model=passed[0], hardware=vllm_serve.hardware()):
            typer.echo(f"vegas: {sentence}", err=True)
    passed = _with_folder(passed)
    typer.echo(f"vegas: {command}", err=True)
    vllm_serve.run_vllm(passed)


def _with_folder(arguments: list[str]) -> list[str]:
    """Put the folder of a model of `vegas models` in the place of its name, and keep the name for clients."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    name, *rest = arguments
    place = place_of(name, Console(stderr=True))
    named = place == name or any(argument.startswith("--served-model-name") for argument in rest)
    return [place, *rest, *([] if named else ["--served-model-name", name])]
