"""``vegas generate``: continue a prompt with a model that drafts for itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vegas_spec.cli import flags, prompts
from vegas_spec.cli.display import LEGEND, TokenPrinter, summary, token_bar, watch_prefill
from vegas_spec.cli.errors import INTERRUPTED
from vegas_spec.cli.load import load
from vegas_spec.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM
    from vegas_spec.engine.outputs import RequestOutput


@flags.with_groups
def generate(
    model: flags.Model,
    dash: prompts.Dash = None,
    prompt: prompts.Prompt = None,
    prompt_file: prompts.PromptFile = None,
    chat: prompts.Chat = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print text as it comes.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Colour tokens: accepted, corrected, bonus.")] = False,
    as_json: flags.Json = False,
    *,
    params: Annotated[SamplingParams, flags.SAMPLING],
    drafting: Annotated[flags.Drafting, flags.DRAFTING],
    config: flags.ConfigPath = None,
    loading: Annotated[flags.Loading, flags.LOADING],
) -> None:
    """Continue a prompt; the output is the model's own, drafting only makes it come sooner."""
    console = Console(stderr=True)
    text = prompts.read_prompt(prompt, prompt_file, dash)
    llm = load(model, console, loading, drafting, config)
    run(llm, prompts.make_prompt(llm, text, chat), params, console, as_json=as_json, stream=stream, show=show)


def run(
    llm: LLM, prompt: Any, params: SamplingParams, console: Console, *, as_json: bool, stream: bool, show: bool
) -> RequestOutput:
    """Generate and print; Ctrl-C prints what there is and exits with 130, a broken model with 1."""
    printer = TokenPrinter(llm, Console(highlight=False), params.stop, coloured=show)
    if show and not as_json:
        console.print(LEGEND)
    updates = llm.stream(prompt, params)
    last: RequestOutput | None = None
    interrupted = False
    try:
        for update in _watch(console, updates, params, bar=as_json or not stream):
            last = update.output
            if stream and not as_json:
                printer.show(update)
    except KeyboardInterrupt:
        interrupted = True
        if last is not None and stream and not as_json:
            printer.show_rest(last)
    if last is None:
        if as_json:
            typer.echo(json.dumps({"interrupted": True, "outputs": []}))
        raise typer.Exit(INTERRUPTED)
    _finish(last, console, as_json=as_json, stream=stream, interrupted=interrupted)
    return last


def _watch(console: Console, updates: Any, params: SamplingParams, bar: bool) -> Any:
    decoding = watch_prefill(console, updates, "reading the prompt")
    if not bar:
        yield from decoding
        return
    progress = token_bar(console)
    task = progress.add_task("decoding", total=params.max_tokens)
    try:
        for update in decoding:
            progress.start()
            progress.update(task, completed=len(update.output.outputs[0].token_ids))
            yield update
    finally:
        progress.stop()


def _finish(output: RequestOutput, console: Console, *, as_json: bool, stream: bool, interrupted: bool) -> None:
    completion = output.outputs[0]
    if as_json:
        typer.echo(json.dumps({**output.to_dict(), "interrupted": interrupted}))
    else:
        typer.echo("" if stream else completion.text)
        line = summary(output.stats, len(completion.token_ids), len(output.prompt_token_ids))
        console.print(line, style="dim", highlight=False)
    if output.error:
        typer.echo(f"vegas: {output.error}", err=True)
        raise typer.Exit(1)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
