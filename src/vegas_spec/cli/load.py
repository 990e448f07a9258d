"""From a model's name on the command line to the engine that runs it: found, fetched if need be, loaded."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.flags import Drafting, Loading
from vegas_spec.models import Step, fetch, get_model, is_fetched, known_models

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?(?<!\.gguf)")

_SAYS: dict[Step, str] = {
    "waiting": "waiting for another fetch of it",
    "downloading": "downloading",
    "checking": "checking its sha256",
    "converting": "converting (a minute or more)",
}


def load(
    model: str,
    console: Console,
    loading: Loading,
    drafting: Drafting | None = None,
    config: Path | None = None,
    *,
    yes: bool = False,
    **options: Any,
) -> LLM:
    """Load a model for a subcommand.

    Parameters
    ----------
    model : str
        As on the command line.
    console : Console
        Where waiting is shown.
    loading, drafting : Loading, Drafting
        What the flags say.
    config : Path, optional
        A file of options; flags win over it. One that was tuned on another model or hardware is used with a warning.
    yes : bool
        Download a model of `vegas models` without asking.
    **options
        Further ones of `vegas_spec.LLM`.

    """
    given = {name: value for name, value in vars(loading).items() if value is not None}
    if loading.hf_overrides is not None:
        given["hf_overrides"] = read_json_object("--hf-overrides", loading.hf_overrides)
    method = {**(tuned(config, model, console) if config else {}), **(drafting.given if drafting else {})}
    from vegas_spec.config import VegasConfig

    VegasConfig.from_dict(method)
    place = place_of(model, console, yes=yes)
    with console.status(f"loading {escape(place)}") if console.is_terminal else console.capture():
        _ask_the_hub_once(place, loading.revision)
        import transformers

        from vegas_spec.engine.llm import LLM

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        return LLM(place, **given, **method, **options)


def tuned(config: Path, model: str, console: Console) -> dict[str, Any]:
    """Options of a file of `vegas tune`, with a warning where they were tuned on something else."""
    from vegas_spec import config_file
    from vegas_spec.environment import hardware

    content = config_file.load(config)
    for warning in content.warnings(model=model, hardware=hardware()):
        console.print(f"vegas: warning: {config}: {warning}", style="yellow", highlight=False, markup=False)
    return content.options


def _ask_the_hub_once(place: str, revision: str | None) -> None:
    """Where the hub does not answer, look into its library's cache only: it would go on asking for half a minute.

    Raises
    ------
    UsageError
        If the model is not there either.

    """
    from vegas_spec.models.hub import ask

    if not _HUB_ID.fullmatch(place) or Path(place).exists() or ask(place, "config.json", revision) is not None:
        return
    import huggingface_hub

    huggingface_hub.constants.HF_HUB_OFFLINE = True
    with contextlib.suppress(huggingface_hub.errors.HFValidationError):
        if huggingface_hub.try_to_load_from_cache(place, "config.json", revision=revision) is None:
            raise UsageError(
                f"cannot load {place}: there is no such file or folder, and the model hub does not answer; "
                f"models known by name: {', '.join(known.name for known in known_models())}"
            )


def place_of(model: str, console: Console, *, yes: bool = False) -> str:
    """Where a model is: of one of `vegas models`, its folder, fetched if that is wanted; of others, what was given.

    Raises
    ------
    UsageError
        If it is to be fetched and nobody can be asked, or the name is almost one of `vegas models`.

    """
    names = [known.name for known in known_models()]
    if model in names:
        if not is_fetched(model) and not yes:
            _ask_to_fetch(model, console)
        return str(fetch_showing_progress(model, console))
    if "/" not in model and not Path(model).expanduser().exists():
        for near in difflib.get_close_matches(model.lower(), names, n=1):
            raise UsageError(f"there is no model {model!r}; did you mean {near!r}?")
    return model


def _ask_to_fetch(name: str, console: Console) -> None:
    size = f"{get_model(name).num_bytes / 1e9:.1f} GB"
    if not (console.is_terminal and sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(f"{name} is not on this machine yet; fetch it ({size}) with: vegas models fetch {name}")
    if not typer.confirm(f"{name} is not on this machine yet. Download {size}?", default=True, err=True):
        raise typer.Exit(1)


def fetch_showing_progress(name: str, console: Console | None = None) -> Path:
    """`vegas_spec.models.fetch` with a bar on stderr, or with one line per step where that is not a terminal."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    seen: Step | None = None
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, size="")

        def show(step: Step, done: int, total: int) -> None:
            nonlocal seen
            if step != seen and not console.is_terminal:
                console.print(f"{name}: {_SAYS[step]}", highlight=False)
            seen = step
            # The converted file is written in one go at the end: its bytes say nothing until then.
            counts = step in ("downloading", "checking")
            bar.update(
                task,
                description=f"{name}: {_SAYS[step]}",
                completed=done,
                total=total if counts else None,
                size=f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if counts else "",
            )

        return fetch(name, show)


def read_json_object(flag: str, text: str) -> dict[str, Any]:
    """Parse a flag's JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} must be a JSON object; got {text!r} ({error})") from error
    if not isinstance(values, dict):
        raise UsageError(f"{flag} must be a JSON object; got {text!r}")
    return values
