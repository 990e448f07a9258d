"""``vegas bench throughput``: how fast each side decodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vegas_bench.cli import runs
from vegas_spec.cli import options as flags
from vegas_spec.cli.errors import UsageError

if TYPE_CHECKING:
    from vegas_bench.results.results import ThroughputRow


def throughput(
    model: flags.ModelArgument,
    engine: runs.Engine = "embedded",
    policies: Annotated[
        str,
        typer.Option("--policies", help="By commas, as for acceptance; full is plain decoding, in vLLM stock vLLM."),
    ] = "full,vegas",
    budgets: runs.Budgets = "0.05",
    gammas: runs.Gammas = "6",
    contexts: Annotated[str, typer.Option("--contexts", help="Prompt tokens per request, by commas.")] = "8192",
    batches: Annotated[str, typer.Option("--batches", help="Requests at once, by commas.")] = "1",
    temperatures: Annotated[str, typer.Option("--temperatures", help="By commas; 0 is greedy.")] = "0",
    workload: runs.Workload = "source",
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each side at each shape.")] = 3,
    max_tokens: flags.MaxTokens = 128,
    kv_budget_min: flags.KvBudgetMin = 256,
    out: runs.Out = Path("throughput.json"),
    csv: runs.Csv = None,
    restart: runs.Restart = False,
    as_json: flags.Json = False,
    attention: runs.Attention = "torch",
    engine_args: runs.EngineArgs = "{}",
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    revision: flags.Revision = None,
    hf_overrides: flags.HfOverrides = None,
) -> None:
    """Measure decode tokens/s by context, batch and temperature: plain decoding against each policy, in one run.

    A run that is interrupted goes on where it was when the command is repeated.
    """
    from vegas_bench.measure import throughput as bench
    from vegas_bench.measure.throughput_rows import Shape
    from vegas_bench.measure.variants import variants
    from vegas_bench.measure.vllm_side import check_vllm
    from vegas_bench.results.results import Result
    from vegas_bench.workloads import Encoder, parse
    from vegas_spec.config import check_choice, check_int
    from vegas_spec.engine.loading import load_tokenizer
    from vegas_spec.engine.sampling_params import SamplingParams
    from vegas_spec.environment import hardware

    check_choice("engine", engine, ["embedded", "vllm"])
    check_int("--repeats", repeats, 1)
    runs.check_outputs(out=out, csv=csv)
    console = Console(stderr=True)
    compared = variants(
        runs.names(policies, "--policies"),
        runs.numbers(budgets, "--budgets", float),
        runs.numbers(gammas, "--gammas", int),
        kv_budget_min=kv_budget_min,
    )
    shapes = [
        Shape(context, batch, temperature)
        for context in runs.numbers(contexts, "--contexts", int)
        for batch in runs.numbers(batches, "--batches", int)
        for temperature in runs.numbers(temperatures, "--temperatures", float)
    ]
    for shape in shapes:
        check_int("--contexts", shape.context, 1)
        check_int("--batches", shape.batch, 1)
        SamplingParams(temperature=shape.temperature, max_tokens=max_tokens)
    spec = parse(workload)
    arguments = runs.read_engine_args(engine, engine_args)
    most = max(shape.batch for shape in shapes)

    def prompts_of(context: int, batch: int) -> list[list[int]]:
        found = spec.build(encoder, context, prompts=batch, min_tokens=context, max_tokens=context)
        if len(found) < batch:
            raise UsageError(
                f"workload {workload} has {len(found)} prompts of at least {context} tokens, and a batch of {batch} "
                "needs as many; take another workload or a smaller batch"
            )
        return [each.prompt["prompt_token_ids"] for each in found]

    settings: dict[str, Any] = {"engine": engine, "workload": workload, "max_tokens": max_tokens, "repeats": repeats}
    settings |= {"dtype": dtype, "revision": revision, "hf_overrides": hf_overrides, "kv_budget_min": kv_budget_min}
    longest = max(shape.context for shape in shapes)
    if engine == "vllm":
        check_vllm()
        place = flags.place_of(model, console)
        encoder = Encoder(load_tokenizer(place, revision), model)
        lengths = longest + max_tokens + 64
        more = {"max_model_len": lengths, "max_num_seqs": most, **arguments}
        vllm_args = runs.vllm_arguments(place, dtype, revision, hf_overrides, more)
        settings["engine_args"] = arguments
    else:
        llm = flags.load(
            model,
            console,
            dtype=dtype,
            device=device,
            revision=revision,
            hf_overrides=hf_overrides,
            max_num_seqs=most,
            attention=attention,
        )
        if longest + max_tokens > llm.max_model_len:
            raise UsageError(
                f"--contexts {longest} and --max-tokens {max_tokens} together are more than the model's context of "
                f"{llm.max_model_len} tokens; lower one of them"
            )
        encoder = Encoder.of(llm)
        settings |= {"dtype": str(llm.model.dtype).removeprefix("torch."), "device": str(llm.model.device)}
        settings["attention"] = attention
    run = {"kind": "throughput", "model": model, "hardware": hardware(), **settings}
    with runs.journal_of(out, run, restart, console) as journal:
        with runs.progress_of(console) as watch:
            if engine == "vllm":
                log = out.with_name(f"{out.name}.vllm.log")
                rows = bench.measure_vllm(
                    compared, shapes, prompts_of, max_tokens, repeats, vllm_args, log, journal, watch
                )
            else:
                rows = bench.measure_embedded(
                    llm, compared, shapes, prompts_of, max_tokens, repeats, journal, watch, attention
                )
        result = Result.of_this_run("throughput", Path(model).name, settings, rows)
        runs.store(result, journal, out, csv, console)
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
    else:
        runs.print_table(table(rows))


def table(rows: Sequence[ThroughputRow]) -> Table:
    """Show all sides, one a line."""
    shown = Table(title="decode tokens/s", title_justify="left", box=SIMPLE_HEAD)
    for column in (
        "context",
        "batch",
        "temp.",
        "policy",
        "gamma",
        "budget",
        "tokens/s (range)",
        "speedup",
        "predicted",
    ):
        shown.add_column(column, justify="left" if column == "policy" else "right")
    for column in ("accepted", "selection", "ms per iteration"):
        shown.add_column(column, justify="right")
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
            f"{row.config['kv_budget']:.1%}" if row.config else "",
            f"{row.median:.1f} ({min(speeds):.1f}-{max(speeds):.1f})",
            f"{row.median / base:.2f}" if base else "",
            "" if row.predicted_speedup is None else f"{row.predicted_speedup:.2f}",
            "" if row.accepted_per_iteration is None else f"{row.accepted_per_iteration:.2f}",
            "" if row.selection_overhead is None else f"{row.selection_overhead:.1%}",
            " ".join(f"{phase} {value:.1f}" for phase, value in times.items()),
        )
    return shown
