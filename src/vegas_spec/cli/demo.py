"""``vegas demo``: a real model answers a real long prompt, drafting over a few percent of its cache."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from vegas_spec.cli import flags, prompts
from vegas_spec.cli.display import LEGEND, TokenPrinter, acceptance_by_position, summary, token_bar, watch_prefill
from vegas_spec.cli.load import load
from vegas_spec.cli.verify import describe
from vegas_spec.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vegas_spec.engine.outputs import Update

MODEL = "qwen2.5-coder-0.5b"


@flags.with_groups
def demo(
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", help="Length of the prompt.")] = 8192,
    max_tokens: flags.MaxTokens = 96,
    model: Annotated[str, typer.Option("--model", help="Another model than the small one.")] = MODEL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download the model without asking.")] = False,
    as_json: flags.Json = False,
    *,
    loading: Annotated[flags.Loading, flags.LOADING.only("device", "threads")],
) -> None:
    """Show the method on a real model: the stream in colour, what was accepted, what was read, and that it is exact."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    console = Console(stderr=True) if as_json else Console(highlight=False)
    llm = load(model, console, loading, yes=yes)
    name, prompt = prompts.make_source_prompt(llm, prompt_tokens, number=1)
    from vegas_spec.engine.equality import judge

    config = llm.config
    files = name.partition(": ")[2]  # its number, of several prompts, goes before
    console.print(
        Panel(
            f"{escape(model)} on {llm.model.device} in {str(llm.model.dtype).removeprefix('torch.')}. The prompt: "
            f"{prompt_tokens:,} tokens of the standard library's source ({files}) and a question about it. "
            f"Each iteration drafts {config.num_speculative_tokens} tokens over {config.budget(prompt_tokens):,} KV "
            "entries per head, the ones that the last verification gave most weight, then verifies them with all.",
            title="Vegas",
            border_style="dim",
        )
    )

    if not console.is_terminal:
        console.print("Reading the prompt, a minute or more on two cores ...", style="dim")
    begin = time.perf_counter()
    printer = TokenPrinter(llm, console, (), coloured=True)
    output = None
    for update in watch_prefill(console, llm.stream(prompt, params), "reading the prompt"):
        output = update.output
        if not as_json:
            if len(output.outputs[0].token_ids) == update.new_tokens:
                console.print(LEGEND, end="\n\n")
            printer.show(update)
    assert output is not None  # a stream of a prompt always ends with an update
    vegas_seconds = time.perf_counter() - begin
    if not as_json:
        console.print(f"\n\n{summary(output.stats, len(output.outputs[0].token_ids), prompt_tokens)}", style="dim")
        console.print("\nHow often each draft was accepted:")
        console.print(acceptance_by_position(output.stats))
        console.print(f"Now the same without drafts, to compare (about {vegas_seconds:.0f} s).")

    plain = llm.with_config(policy="full")
    expected = None
    with token_bar(console) as bar:
        task = bar.add_task("", total=prompt_tokens + max_tokens)

        def watch(run: str, update: Update) -> None:
            done = update.prefilled + len(update.output.outputs[0].token_ids)
            bar.update(task, description=f"{run}: decoding plainly", completed=done)

        for update in plain.stream(prompt, params):
            expected = update.output
            watch("to compare", update)
        assert expected is not None
        report = judge(plain, [expected], [output], ignore_eos=True, watch=watch)
    if as_json:
        typer.echo(json.dumps({**report.to_dict(), "text": output.outputs[0].text}))
    else:
        verdict, *differences, _ = describe(report).splitlines()
        console.print(verdict, style="bold red" if report.faults else "bold green")
        for line in differences:
            console.print(line, markup=False)
        console.print(
            f"One forward pass per {output.stats.mean_acceptance_length:.1f} tokens read the whole cache; "
            f"plain decoding reads it for every token. Drafting read {output.stats.draft_kv_share:.1%} of it.",
        )
    if report.faults:
        raise typer.Exit(1)
