"""``vegas bench throughput``: how fast each side decodes."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vegas_bench.cli import runs
from vegas_bench.cli.in_vllm import IN_VLLM, InVllm, encoder_of, prompts_for
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.load import load
from vegas_spec.config import VegasConfig, check_int

if TYPE_CHECKING:
    from vegas_bench.measure.throughput import PromptsOf
    from vegas_bench.measure.throughput_rows import Shape
    from vegas_bench.results.results import ThroughputRow


@flags.with_groups
def throughput(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A name of `vegas models`, a hub id, a folder, or a .gguf file."),
    ] = None,
    engine: runs.Engine = "embedded",
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            help="By commas, as for acceptance; full is plain decoding. In vLLM, where that is stock vLLM, also ngram, "
            "suffix, and vegas:fall_back=true, which may suspend drafting.",
        ),
    ] = "full,vegas",
    budgets: runs.Budgets = runs.BUDGET,
    gammas: Annotated[str | None, typer.Option("--gammas", help="Drafted tokens per iteration, by commas.")] = None,
    contexts: Annotated[
        str | None, typer.Option("--contexts", help="Prompt tokens per request, by commas; else 8192.")
    ] = None,
    batches: Annotated[str | None, typer.Option("--batches", help="Requests at once, by commas; else 1.")] = None,
    cases: Annotated[
        str | None, typer.Option("--cases", help="Context x batch, by commas, instead of all pairs: 28000x32,4096x8.")
    ] = None,
    temperatures: Annotated[str, typer.Option("--temperatures", help="By commas; 0 is greedy.")] = "0",
    workload: runs.Workload = "source",
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each side at each shape.")] = 3,
    max_tokens: flags.MaxTokens = 128,
    as_json: flags.Json = False,
    attention: runs.Attention = "torch",
    *,
    drafting: Annotated[flags.Drafting, flags.DRAFTING.only("kv_budget_min")],
    in_vllm: Annotated[InVllm, IN_VLLM],
    storing: Annotated[runs.Storing, runs.STORING.without(out=Path("throughput.json"))],
    loading: Annotated[flags.Loading, flags.LOADING.without("max_model_len")],
) -> None:
    """Measure decode tokens/s by context, batch and temperature: plain decoding against each policy, in one run.

    A run that is interrupted goes on where it was when the command is repeated.
    """
    from vegas_bench.measure.throughput import measure_embedded
    from vegas_bench.measure.variants import variants, without_equals
    from vegas_bench.results.results import Result

    check_int("--repeats", repeats, 1)
    in_vllm.check(engine, model)
    storing.check()
    console = Console(stderr=True)
    usual = len(in_vllm.rates) or VegasConfig.num_speculative_tokens
    wanted = (
        runs.names(policies, "--policies"),
        runs.numbers(budgets, "--budgets", float),
        runs.numbers(gammas or str(usual), "--gammas", int),
    )
    shapes = _shapes(cases, contexts, batches, temperatures, max_tokens)
    longest, most = max(each.context for each in shapes), max(each.batch for each in shapes)
    settings: dict[str, Any] = {"engine": engine, "workload": workload, "max_tokens": max_tokens, "repeats": repeats}
    settings |= {"revision": loading.revision, "hf_overrides": loading.hf_overrides, "dtype": loading.dtype}
    settings |= {"kv_budget_min": drafting.config.kv_budget_min}
    prompts_of: PromptsOf
    sides: list[Any]
    if engine == "vllm":
        from vegas_bench.measure.model_shapes import random_prompts, vocab_size
        from vegas_bench.measure.vllm_side import LOOKUPS, vllm_sides
        from vegas_bench.measure.vllm_throughput import Comparison, measure_vllm

        if attention != "torch":
            raise UsageError("--attention is the embedded engine's; leave it out with vLLM, which has its own")
        if in_vllm.shape and any(label.partition(":")[0] in LOOKUPS for label in wanted[0]):
            raise UsageError("ngram and suffix look drafts up in a text, and a shape has none; leave them out")
        sides = vllm_sides(*wanted, **drafting.given)
        limits = {"max_model_len": max(longest, *in_vllm.lengths, 0) + max_tokens + 64, "max_num_seqs": most}
        arguments = in_vllm.engine(model, loading, limits, len(sides), console)
        if in_vllm.shape is None:
            prompts_of = prompts_for(encoder_of(str(model), arguments), workload)
        else:
            known = vocab_size(in_vllm.shape, arguments.get("hf_overrides", {}))
            prompts_of = functools.partial(random_prompts, known)
            settings |= {"workload": "random tokens", "shape": in_vllm.shape, "imposed_acceptance": in_vllm.acceptance}
        settings |= {"engine_args": in_vllm.arguments, "kv_bytes": in_vllm.kv_bytes, "first_token": in_vllm.lengths}
        settings |= {"profile": in_vllm.profile, "sides_ran": "together" if in_vllm.together else "one after another"}
    else:
        sides = variants(*wanted, **drafting.given)
        llm = load(str(model), console, loading, max_num_seqs=most, attention=attention)
        if longest + max_tokens > llm.max_model_len:
            flag = "--cases" if cases else "--contexts"
            raise UsageError(
                f"{flag} {longest} and --max-tokens {max_tokens} together are more than the model's context of "
                f"{llm.max_model_len} tokens; lower one of them"
            )
        from vegas_bench.workloads import Encoder

        prompts_of = prompts_for(Encoder.of(llm), workload)
        settings |= {"dtype": str(llm.model.dtype).removeprefix("torch."), "device": str(llm.model.device)}
        settings |= {"attention": attention, "sides_ran": "in turns"}
    sides, notes = without_equals(sides, [each.context for each in shapes], max_tokens)
    with storing.journal("throughput", model or str(in_vllm.shape), settings, console) as journal:
        runs.note(console, settings, notes)
        with runs.progress_of(console) as watch:
            if engine == "vllm":
                comparison = Comparison(
                    engine=arguments,
                    shapes=shapes,
                    prompts_of=prompts_of,
                    max_tokens=max_tokens,
                    repeats=repeats,
                    rates=in_vllm.rates,
                    first_token=in_vllm.lengths,
                    profile=in_vllm.profile,
                    together=in_vllm.together,
                )
                rows, settings["sides"] = measure_vllm(sides, comparison, storing.beside("vllm.log"), journal, watch)
            else:
                rows = measure_embedded(llm, sides, shapes, prompts_of, max_tokens, repeats, journal, watch, attention)
        result = Result.of_this_run("throughput", in_vllm.shape or Path(str(model)).name, settings, rows)
        storing.store(result, journal, console)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
    else:
        runs.print_table(table(rows))


def _shapes(
    cases: str | None, contexts: str | None, batches: str | None, temperatures: str, max_tokens: int
) -> list[Shape]:
    """Every case, or context with every batch, at every temperature."""
    from vegas_bench.measure.throughput_rows import Shape
    from vegas_spec.engine.sampling_params import SamplingParams

    if cases is None:
        by_context = runs.numbers(contexts or "8192", "--contexts", int)
        by_batch = runs.numbers(batches or "1", "--batches", int)
        pairs = [(context, batch) for context in by_context for batch in by_batch]
    elif contexts or batches:
        raise UsageError("--cases are given instead of --contexts and --batches; leave the others out")
    else:
        pairs = []
        for case in runs.names(cases, "--cases", "context x batch, such as 28000x32,"):
            context, _, batch = case.partition("x")
            if not (context.isdecimal() and batch.isdecimal()):
                raise UsageError(
                    f"--cases must be context x batch, such as 28000x32, separated by commas; got {case!r}"
                )
            pairs.append((int(context), int(batch)))
    for context, batch in pairs:
        check_int("a context", context, 1)
        check_int("a batch", batch, 1)
    found = runs.numbers(temperatures, "--temperatures", float)
    for temperature in found:
        SamplingParams(temperature=temperature, max_tokens=max_tokens)
    return [Shape(context, batch, temperature) for context, batch in pairs for temperature in found]


def table(rows: Sequence[ThroughputRow]) -> Table:
    """Show all sides, one a line."""
    shown = Table(title="decode tokens/s", title_justify="left", box=SIMPLE_HEAD)
    columns = ("context", "batch", "temp.", "policy", "gamma", "budget", "tokens/s (range)", "speedup", "predicted")
    for column in (*columns, "accepted", "selection", "ms per iteration"):
        shown.add_column(column, justify="left" if column == "policy" else "right")
    plain = {(row.context, row.batch, row.temperature): row.median for row in rows if row.policy == "full"}
    for row in rows:
        base = plain.get((row.context, row.batch, row.temperature))
        speeds = row.tokens_per_second
        times = row.milliseconds or {}
        shown.add_row(
            f"{row.context:,}",
            str(row.batch),
            f"{row.temperature:g}",
            row.policy,
            str(row.config.get("num_speculative_tokens", "")),
            f"{row.config['kv_budget']:.1%}" if "kv_budget" in row.config else "",
            f"{row.median:.1f} ({min(speeds):.1f}-{max(speeds):.1f})",
            f"{row.median / base:.2f}" if base else "",
            "" if row.predicted_speedup is None else f"{row.predicted_speedup:.2f}",
            "" if row.accepted_per_iteration is None else f"{row.accepted_per_iteration:.2f}",
            "" if row.selection_overhead is None else f"{row.selection_overhead:.1%}",
            " ".join(f"{phase} {value:.1f}" for phase, value in times.items()),
        )
    return shown
