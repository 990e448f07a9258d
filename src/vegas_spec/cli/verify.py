"""``vegas verify``: check on a model of one's own that drafting does not change the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vegas_spec.cli import flags, prompts
from vegas_spec.cli.display import token_bar
from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.load import load
from vegas_spec.config import check_int

if TYPE_CHECKING:
    from vegas_spec.engine.equality import EqualityReport
    from vegas_spec.engine.llm import LLM


@flags.with_groups
def verify(
    model: flags.Model,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be repeated.")] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option("--prompt-file", help="A text file that holds a prompt; may be repeated.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", help="Length of the built-in prompt, used if none is given.")
    ] = 2048,
    chat: prompts.Chat = None,
    as_json: flags.Json = False,
    max_tokens: flags.MaxTokens = 64,
    *,
    drafting: Annotated[flags.Drafting, flags.DRAFTING],
    config: flags.ConfigPath = None,
    loading: Annotated[flags.Loading, flags.LOADING],
) -> None:
    """Run the same prompts plainly and with drafts, greedily, and compare token by token.

    Exit code 0 if all tokens are the same but for numerical ties, after which
    the plain model goes on with the other text; 1 otherwise.
    """
    check_int("max_tokens", max_tokens, 1)
    console = Console(stderr=True)
    texts = [prompts.check_text(text) for text in (*(prompt or ()), *map(prompts.read_text, prompt_file or ()))]
    llm = load(model, console, loading, drafting, config)
    asked = [prompts.make_prompt(llm, text, chat) for text in texts] or [_own_prompt(llm, prompt_tokens)]
    from vegas_spec.engine.equality import compare

    with token_bar(console) as bar:
        task = bar.add_task("")
        seen: dict[tuple[str, str], int] = {}

        def watch(run: str, update: Any) -> None:
            output = update.output
            seen[run, output.request_id] = len(output.outputs[0].token_ids)
            if not update.new_tokens:
                total = len(output.prompt_token_ids)
                bar.update(task, description=f"{run}: reading", completed=update.prefilled, total=total)
            else:
                done = sum(tokens for (name, _), tokens in seen.items() if name == run)
                bar.update(task, description=f"{run}: decoding", completed=done, total=max_tokens * len(asked))

        report = compare(llm.with_config(policy="full"), llm, asked, max_tokens, watch)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        typer.echo(describe(report))
    if report.faults:
        raise typer.Exit(1)


def describe(report: EqualityReport) -> str:
    """Tell a report in a few lines."""
    ties = len(report.ties)
    but = f": all but {ties} numerical tie{'s' * (ties != 1)}" if ties and not report.faults else ""
    lines = [f"{report.agreeing}/{report.compared} tokens identical{but}"]
    for difference in report.differences:
        what = "a numerical tie" if difference.tie else "NOT a numerical tie"
        lines.append(
            f"prompt {difference.prompt}, token {difference.position}: plain {difference.plain_text!r}, "
            f"with drafts {difference.vegas_text!r}; their logits differ by {difference.gap:.4f}, {what}"
        )
    lines.append(f"tokens per iteration: {report.to_dict()['acceptance_length']:.2f}")
    return "\n".join(lines)


def _own_prompt(llm: LLM, num_tokens: int) -> Any:
    if not llm.has_chat_template:
        raise UsageError(
            "the built-in prompt needs a chat template, and this model has none; give --prompt or --prompt-file"
        )
    return prompts.make_source_prompt(llm, num_tokens)[1]
