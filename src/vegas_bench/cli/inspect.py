"""``vegas inspect``: which past tokens verification chose, over the prompt's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vegas_bench.cli import runs
from vegas_bench.cli.pages import need
from vegas_spec.cli import options as flags
from vegas_spec.cli import prompts
from vegas_spec.cli.display import token_bar
from vegas_spec.cli.errors import UsageError

if TYPE_CHECKING:
    from vegas_spec.engine.outputs import Update


def inspect(
    context: typer.Context,
    model: flags.ModelArgument,
    dash: prompts.Dash = None,
    prompt: prompts.Prompt = None,
    prompt_file: prompts.PromptFile = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("inspect.html"),
    chat: prompts.Chat = None,
    as_json: flags.Json = False,
    max_tokens: flags.MaxTokens = 128,
    ignore_eos: flags.IgnoreEos = False,
    num_speculative_tokens: flags.NumSpeculativeTokens = 6,
    policy: flags.Policy = "vegas",
    kv_budget: flags.KvBudget = 0.05,
    kv_budget_min: flags.KvBudgetMin = 256,
    kv_budget_max: flags.KvBudgetMax = None,
    score: flags.Score = "weight",
    rows: flags.Rows = "ends",
    granularity: flags.Granularity = "kv_head",
    config: flags.ConfigPath = None,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    revision: flags.Revision = None,
    hf_overrides: flags.HfOverrides = None,
    max_model_len: flags.MaxModelLen = None,
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
    from vegas_spec.engine.sampling_params import SamplingParams

    console = Console(stderr=True)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    text = prompts.read_prompt(prompt, prompt_file, dash)
    llm = flags.load(
        model,
        console,
        dtype=dtype,
        device=device,
        revision=revision,
        hf_overrides=hf_overrides,
        max_model_len=max_model_len,
        **flags.drafting(context, config, model, console),
    )
    with token_bar(console) as bar:
        task = bar.add_task("reading the prompt", total=None)

        def watch(update: Update) -> None:
            done = len(update.output.outputs[0].token_ids)
            if done:
                bar.update(task, description="looking", completed=done, total=max_tokens)
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
