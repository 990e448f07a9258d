"""``vegas inspect``: which past tokens verification chose, over the prompt's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vegas_bench.cli import runs
from vegas_bench.cli.pages import need
from vegas_spec.cli import flags, prompts
from vegas_spec.cli.display import token_bar
from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.load import load
from vegas_spec.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vegas_spec.engine.outputs import Update


@flags.with_groups
def inspect(
    model: flags.Model,
    dash: prompts.Dash = None,
    prompt: prompts.Prompt = None,
    prompt_file: prompts.PromptFile = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("inspect.html"),
    chat: prompts.Chat = None,
    as_json: flags.Json = False,
    *,
    params: Annotated[SamplingParams, flags.SAMPLING.only("max_tokens", "ignore_eos", max_tokens=128)],
    drafting: Annotated[flags.Drafting, flags.DRAFTING.without("adaptive")],
    config: flags.ConfigPath = None,
    loading: Annotated[flags.Loading, flags.LOADING],
) -> None:
    """Complete a prompt greedily and draw what each iteration's verification chose, over the text.

    Looking takes time: exact scores of every draft step and every verified row are computed beside the run.
    """
    need("vegas inspect", "jinja2")
    runs.check_outputs(output=output)
    if prompt_file is not None and Path(prompt_file).resolve() == output.resolve():
        raise UsageError(f"--output must be another file than the prompt's; got {output} for both")
    from vegas_bench.inspect.observe import inspect as observe
    from vegas_bench.inspect.page import inspection_page
    from vegas_bench.results.results import write_whole

    console = Console(stderr=True)
    text = prompts.read_prompt(prompt, prompt_file, dash)
    llm = load(model, console, loading, drafting, config)
    with token_bar(console) as bar:
        task = bar.add_task("reading the prompt", total=None)

        def watch(update: Update) -> None:
            done = len(update.output.outputs[0].token_ids)
            if done:
                bar.update(task, description="looking", completed=done, total=params.max_tokens)
            else:
                bar.update(task, completed=update.prefilled, total=len(update.output.prompt_token_ids))

        found = observe(llm, prompts.make_prompt(llm, text, chat), params, watch)
    html = inspection_page(found)
    write_whole(html, output)
    figures = found.to_dict()
    if as_json:
        typer.echo(json.dumps({"page": str(output), **figures}))
        return
    typer.echo(
        f"{output}: {len(found.looks)} iterations over {found.length:,} positions, {len(html) / 1e6:.1f} MB; "
        f"{figures['accepted_per_iteration']:.2f} of {llm.config.num_speculative_tokens} drafts accepted"
    )
