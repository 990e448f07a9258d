"""``vegas tune``: find gamma and budget for a model, a workload and this hardware, and write them to a config file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vegas_spec.cli import options as flags
from vegas_spec.cli import runs
from vegas_spec.cli.errors import UsageError

if TYPE_CHECKING:
    from vegas_spec.eval.results import TuningRow

_TITLES = {
    1: "Step 1: the budget, until acceptance stops growing",
    2: "Step 2: gamma, by decoding speed",
    3: "Step 3: the budget again, by decoding speed",
}
_BAR = 30


def tune(
    model: flags.ModelArgument,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="NAME[:KEY=VALUE,...]",
            help="What to tune on: source, needle, multi-key, aime25, codeelo, longbench-v2 or jsonl.",
        ),
    ] = "source",
    engine: Annotated[str, typer.Option("--engine", help="embedded, or vllm.")] = "embedded",
    budgets: Annotated[str | None, typer.Option("--budgets", help="What step 1 tries, by commas.")] = None,
    gammas: Annotated[str | None, typer.Option("--gammas", help="What step 2 tries, by commas.")] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Run as one batch.")] = 4,
    min_prompt_tokens: Annotated[int | None, typer.Option("--min-prompt-tokens", help="Of each prompt.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option("--max-prompt-tokens", help="Of each prompt.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each setting.")] = 3,
    policy: flags.Policy = "vegas",
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", help="Gamma of step 1.", rich_help_panel="Drafting")
    ] = 6,
    kv_budget_min: flags.KvBudgetMin = 256,
    kv_budget_max: flags.KvBudgetMax = None,
    score: flags.Score = "weight",
    rows: flags.Rows = "ends",
    granularity: flags.Granularity = "kv_head",
    max_tokens: flags.MaxTokens = 128,
    temperature: flags.Temperature = 0.0,
    seed: flags.Seed = 0,
    out: Annotated[
        Path, typer.Option("--out", help="The config file to write, TOML or JSON.", rich_help_panel="Result")
    ] = Path("vegas.toml"),
    result: Annotated[
        Path,
        typer.Option(
            "--result", help="Where the curves go, as JSON; the journal lies beside it.", rich_help_panel="Result"
        ),
    ] = Path("tuning.json"),
    csv: runs.Csv = None,
    restart: runs.Restart = False,
    as_json: flags.Json = False,
    attention: runs.Attention = "torch",
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    revision: flags.Revision = None,
    max_model_len: flags.MaxModelLen = None,
) -> None:
    """Tune gamma and budget in the paper's three steps, by measurement, and write them to a config file.

    The file is for `vegas generate --config` and `vegas serve --config`. Tune on the texts, the hardware and the batch
    size (--prompts) that matter. An interrupted run goes on where it was when the command is repeated.
    """
    from vegas_spec import config_file
    from vegas_spec.config import VegasConfig, check_choice, check_int
    from vegas_spec.engine.sampling_params import SamplingParams
    from vegas_spec.eval.environment import environment, hardware
    from vegas_spec.eval.results import Result
    from vegas_spec.eval.tuning import AROUND, BUDGETS, GAMMAS, Tuner
    from vegas_spec.eval.workload_speed import WorkloadSpeed
    from vegas_spec.eval.workloads import Encoder, parse

    check_choice("engine", engine, ["embedded"])
    check_int("repeats", repeats, 1)
    console = Console(stderr=True)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=True)
    spec = parse(workload)
    base = VegasConfig(
        num_speculative_tokens=num_speculative_tokens,
        policy=policy,
        kv_budget_min=kv_budget_min,
        kv_budget_max=kv_budget_max,
        score=score,  # type: ignore[arg-type]
        rows=rows,  # type: ignore[arg-type]
        granularity=granularity,  # type: ignore[arg-type]
    )
    tried_budgets = BUDGETS if budgets is None else runs.numbers(budgets, "--budgets", float)
    tried_gammas = GAMMAS if gammas is None else runs.numbers(gammas, "--gammas", int)
    for option in [{"kv_budget": each} for each in tried_budgets] + [
        {"num_speculative_tokens": e} for e in tried_gammas
    ]:
        VegasConfig.from_dict({**base.to_dict(), **option})
    if policy in ("dense", "full"):
        raise UsageError(f"policy {policy} has no budget to tune; tune vegas, or a baseline that selects")
    llm = flags.load(
        model,
        console,
        dtype=dtype,
        device=device,
        revision=revision,
        max_model_len=max_model_len,
        max_num_seqs=prompts,
        attention=attention,
    )
    common = {"prompts": prompts, "min_tokens": min_prompt_tokens, "max_tokens": max_prompt_tokens}
    texts = spec.build(Encoder.of(llm), llm.max_model_len - max_tokens, **common)
    lengths = [len(each.prompt["prompt_token_ids"]) for each in texts]
    settings: dict[str, Any] = {
        "engine": engine,
        "workload": workload,
        "context": round(statistics.mean(lengths)),
        "batch": len(texts),
        "dtype": str(llm.model.dtype).removeprefix("torch."),
        "device": str(llm.model.device),
        "attention": attention,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "repeats": repeats,
        "base": base.to_dict(),
        "lengths": lengths,
    }
    run = {"kind": "tuning", "model": model, "hardware": hardware(), **settings}
    with runs.journal_of(result, run, restart, console) as journal:
        with runs.progress_of(console) as watch:
            most = 1 + 2 * len(tried_budgets) + len(tried_gammas) + len(AROUND)
            measure = WorkloadSpeed(llm, [each.prompt for each in texts], params, repeats, journal, watch, most)
            plain = measure(VegasConfig(policy="full", num_speculative_tokens=1, kv_budget=1.0))
            tuner = Tuner(measure, base, plain, tried_budgets, tried_gammas)
            config = tuner.run()
        settings["plain_tokens_per_second"] = plain.tokens_per_second
        settings["chosen"] = config.to_dict()
        stored = Result.of_this_run("tuning", Path(model).name, settings, tuner.rows)
        about = environment()
        tuned_on = {"model": Path(model).name, "hardware": about["hardware"]}
        tuned_on |= {
            name: settings[name] for name in ("engine", "workload", "context", "batch", "temperature", "dtype")
        }
        tuned_on |= {name: about[name] for name in ("date", "command", "versions")}
        config_file.save(config_file.ConfigFile(config.to_dict(), tuned_on), out)
        runs.store(stored, journal, result, csv, console)
    if as_json:
        typer.echo(json.dumps(stored.to_dict()))
        return
    for step, title in _TITLES.items():
        runs.print_table(curve(title, [row for row in tuner.rows if row.step == step], step))
    best = tuner.measured[config.num_speculative_tokens, config.kv_budget]
    default = tuner.measured.get((VegasConfig.num_speculative_tokens, VegasConfig.kv_budget))
    typer.echo(f"{out}: gamma {config.num_speculative_tokens}, budget {config.kv_budget:.1%}")
    typer.echo(f"  {best.speed:.1f} tokens/s, {best.speed / plain.speed:.2f} of plain decoding's {plain.speed:.1f}")
    if best.speed < plain.speed:
        typer.echo("  drafting does not gain here: decode plainly (--policy full), or tune on longer prompts")
    if default is not None:
        typer.echo(f"  {best.speed / default.speed:.2f} of the defaults' {default.speed:.1f}")


def curve(title: str, points: Sequence[TuningRow], step: int) -> Table:
    """Show one step's curve: a line per point, with a bar of what the step looks at."""
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("gamma" if step == 2 else "budget", "accepted", "tokens/s", "predicted"):
        shown.add_column(column, justify="right")
    shown.add_column("accepted" if step == 1 else "tokens/s")
    heights = [_height(point, step) for point in points]
    most = max((height for height in heights if height is not None), default=1.0)
    for point, height in sorted(zip(points, heights, strict=True), key=lambda pair: pair[0].value):
        speeds = point.tokens_per_second
        bar = "" if height is None else "█" * max(1, round(_BAR * height / most)) if most > 0 else ""
        mark = "  <- chosen" if point.chosen else "  ruled out by the cost model" if height is None else ""
        shown.add_row(
            f"{point.value:g}" if step == 2 else f"{point.value:.1%}",
            "" if point.accepted_per_iteration is None else f"{point.accepted_per_iteration:.2f}",
            "" if speeds is None else f"{statistics.median(speeds):.1f} ({min(speeds):.1f}-{max(speeds):.1f})",
            "" if point.predicted_tokens_per_second is None else f"{point.predicted_tokens_per_second:.1f}",
            Text.assemble((bar, "green" if point.chosen else ""), (mark, "bold" if point.chosen else "dim")),
        )
    return shown


def _height(point: TuningRow, step: int) -> float | None:
    if step == 1:
        return point.accepted_per_iteration
    return None if point.tokens_per_second is None else statistics.median(point.tokens_per_second)
