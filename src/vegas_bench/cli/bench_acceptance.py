"""``vegas bench acceptance``: how many drafts each policy gets accepted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vegas_bench.cli import runs
from vegas_spec.cli import flags
from vegas_spec.cli.load import load
from vegas_spec.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vegas_bench.results.summary import AcceptanceSummary


@flags.with_groups
def acceptance(
    model: flags.Model,
    workload: runs.Workloads = None,
    policies: Annotated[
        str, typer.Option("--policies", help="By commas; each may set options: vegas,vegas:rows=all:score=logit.")
    ] = "vegas",
    budgets: runs.Budgets = runs.BUDGET,
    gammas: runs.Gammas = runs.GAMMA,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="Vary budget and gamma from the first of each, not all pairs.")
    ] = False,
    prompts: Annotated[int, typer.Option("--prompts", help="Of each workload.")] = 8,
    min_prompt_tokens: runs.MinPromptTokens = None,
    max_prompt_tokens: runs.MaxPromptTokens = None,
    batch: Annotated[int, typer.Option("--batch", help="Prompts that run at once.")] = 8,
    trace: Annotated[
        int,
        typer.Option(
            "--trace",
            metavar="N",
            min=0,
            help="Measure recall and overlap at every N-th iteration; slow, and seconds are then not the policy's.",
        ),
    ] = 0,
    as_json: flags.Json = False,
    attention: runs.Attention = "torch",
    *,
    drafting: Annotated[flags.Drafting, flags.DRAFTING.only("kv_budget_min")],
    sampling: Annotated[SamplingParams, runs.SAMPLING],
    storing: Annotated[runs.Storing, runs.STORING.without(out=Path("acceptance.json"))],
    loading: Annotated[flags.Loading, flags.LOADING],
) -> None:
    """Measure accepted drafts per iteration: policies x budgets x gammas x workloads, with 95 % intervals over prompts.

    A run that is interrupted goes on where it was when the command is repeated.
    """
    from vegas_bench.measure import acceptance as bench
    from vegas_bench.measure.variants import variants, without_equals
    from vegas_bench.results.results import Result
    from vegas_bench.results.summary import summarise
    from vegas_bench.workloads import Encoder, parse
    from vegas_spec.config import check_int

    check_int("--batch", batch, 1)
    check_int("--prompts", prompts, 1)
    storing.check()
    console = Console(stderr=True)
    compared = variants(
        runs.names(policies, "--policies"),
        runs.numbers(budgets, "--budgets", float),
        runs.numbers(gammas, "--gammas", int),
        one_at_a_time=one_at_a_time,
        **drafting.given,
    )
    specs = [parse(text) for text in workload or ["source"]]
    lengths = {"prompts": prompts, "min_tokens": min_prompt_tokens, "max_tokens": max_prompt_tokens}
    max_tokens = sampling.max_tokens or 1
    llm = load(model, console, loading, max_num_seqs=batch, attention=attention)
    encoder, notes = Encoder.of(llm), list[str]()
    asked = {spec.text: spec.build(encoder, llm.max_model_len - max_tokens, notes.append, **lengths) for spec in specs}
    tokens = [len(each.prompt["prompt_token_ids"]) for found in asked.values() for each in found]
    compared, equals = without_equals(compared, tokens, max_tokens)
    settings: dict[str, Any] = {
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "device": str(llm.model.device),
        "attention": attention,
        "batch": batch,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        "trace_every": trace,
        "kv_budget_min": drafting.config.kv_budget_min,
        "hf_overrides": loading.hf_overrides,
        "revision": loading.revision,
        "workloads": list(asked),
        "prompts": prompts,
        "min_prompt_tokens": min_prompt_tokens,
        "max_prompt_tokens": max_prompt_tokens,
    }
    runs.note(console, settings, notes)
    with storing.journal("acceptance", model, settings, console) as journal:
        runs.note(console, settings, equals)
        with runs.progress_of(console) as watch:
            rows = bench.measure_acceptance(
                llm, compared, asked, sampling, journal, batch=batch, trace_every=trace, watch=watch
            )
        result = Result.of_this_run("acceptance", Path(model).name, settings, rows)
        storing.store(result, journal, console)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    for text in asked:
        runs.print_table(table(text, summarise([row for row in rows if row.workload == text])))


def table(workload: str, summaries: Sequence[AcceptanceSummary]) -> Table:
    """Show one workload's settings, one a line; columns that no line fills are left out."""
    known = [{name for name, value in dataclasses.asdict(each).items() if value is not None} for each in summaries]
    optional = [name for name in ("recall", "correct") if any(name in names for names in known)]
    shown = Table(title=escape(f"{workload}: accepted drafts per iteration"), title_justify="left", box=SIMPLE_HEAD)
    for column in ("policy", "gamma", "budget", "mean [95 %]", "range", "by position", "cache read"):
        shown.add_column(column, justify="left" if column == "policy" else "right")
    for name in optional:
        shown.add_column(name, justify="right")
    for each in summaries:
        cells = [
            each.policy,
            str(each.num_speculative_tokens),
            f"{each.kv_budget:.1%}",
            str(each.accepted),
            f"{each.lowest:.2f}-{each.highest:.2f}",
            " ".join(f"{share:.0%}" for share in each.by_position),
            f"{each.draft_kv_share:.1%}",
        ]
        values = [getattr(each, name) for name in optional]
        shown.add_row(*cells, *("" if value is None else f"{value:.1%}" for value in values))
    return shown
