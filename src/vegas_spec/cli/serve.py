"""``vegas serve``: ``vllm serve`` with Vegas on."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from vegas_spec.cli import options as flags
from vegas_spec.cli.progress import fetch_showing_progress
from vegas_spec.models import known_models

_METHOD = "Drafting"

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of the subcommand: what is not ours is vLLM's."""


def serve(
    context: typer.Context,
    num_speculative_tokens: Annotated[int | None, flags.NUM_SPECULATIVE_TOKENS] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Who chooses what drafts read; see docs/options.md.", rich_help_panel=_METHOD),
    ] = None,
    kv_budget: Annotated[float | None, flags.KV_BUDGET] = None,
    kv_budget_min: Annotated[int | None, flags.KV_BUDGET_MIN] = None,
    kv_budget_max: Annotated[int | None, flags.KV_BUDGET_MAX] = None,
    score: Annotated[str | None, flags.SCORE] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", help="Verified rows that score: ends or all.", rich_help_panel=_METHOD)
    ] = None,
    granularity: Annotated[str | None, flags.GRANULARITY] = None,
    fall_back: Annotated[
        bool | None,
        typer.Option(
            "--fall-back/--no-fall-back", help="Decode plainly where drafting cannot gain.", rich_help_panel=_METHOD
        ),
    ] = None,
    adaptive: Annotated[
        bool | None,
        typer.Option(
            "--adaptive/--no-adaptive",
            help="Adapt the number of drafts to what is accepted; the one given is the most.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the vllm command instead of running it.")] = False,
) -> None:
    """Serve a model with vLLM, drafting with Vegas: vegas serve MODEL [OPTIONS OF vllm serve].

    MODEL and all other arguments go to `vllm serve` as they are (`vllm serve --help=all` lists them). Its
    --speculative-config is merged with the options below, which win; so is --config FILE, if `vegas tune` wrote it (a
    .yaml goes to vLLM). MODEL may also be a name of `vegas models`.
    """
    from vegas_spec import config_file
    from vegas_spec.vllm.start import serve as vllm_serve

    given: dict[str, Any] = {
        "num_speculative_tokens": num_speculative_tokens,
        "policy": policy,
        "kv_budget": kv_budget,
        "kv_budget_min": kv_budget_min,
        "kv_budget_max": kv_budget_max,
        "score": score,
        "rows": rows,
        "granularity": granularity,
        "fall_back": fall_back,
        "adaptive": adaptive,
    }
    drafting = {name: value for name, value in given.items() if value is not None}
    passed, path = vllm_serve.take_config_file(context.args)
    tuned = config_file.ConfigFile({}) if path is None else config_file.load(path)
    arguments = vllm_serve.serve_arguments(passed, drafting, tuned.options)
    command = shlex.join(["vllm", "serve", *arguments])
    if dry_run:
        typer.echo(command)
        return
    vllm_serve.check_vllm()
    if tuned.tuned_on and arguments:
        for sentence in tuned.warnings(model=arguments[0], hardware=vllm_serve.hardware()):
            typer.echo(f"vegas: {sentence}", err=True)
    arguments = _with_folder(arguments)
    typer.echo(f"vegas: {command}", err=True)
    vllm_serve.run_vllm(arguments)


def _with_folder(arguments: list[str]) -> list[str]:
    """Put the folder of a model of `vegas models` in the place of its name, and keep the name for clients."""
    if not arguments or not any(arguments[0] == known.name for known in known_models()):
        return arguments
    name, *rest = arguments
    named = any(argument.startswith("--served-model-name") for argument in rest)
    return [str(fetch_showing_progress(name)), *rest, *([] if named else ["--served-model-name", name])]
