"""``vegas tune``: find gamma and budget for a model, a workload and this hardware, and write them to a config file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vegas_bench.cli import runs, tuning_curves
from vegas_spec.cli import options as flags
from vegas_spec.cli.errors import UsageError

if TYPE_CHECKING:
    from vegas_bench.measure.progress import Watch
    from vegas_bench.results.journal import Journal
    from vegas_bench.tune.tuner import Measure


def tune(
    model: flags.ModelArgument,
    workload: runs.Workload = "source",
    engine: runs.Engine = "embedded",
    budgets: Annotated[str | None, typer.Option("--budgets", help="What step 1 tries, by commas.")] = None,
    gammas: Annotated[str | None, typer.Option("--gammas", help="What step 2 tries, by commas.")] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Run as one batch.")] = 4,
    min_prompt_tokens: runs.MinPromptTokens = None,
    max_prompt_tokens: runs.MaxPromptTokens = None,
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
    engine_args: runs.EngineArgs = "{}",
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    revision: flags.Revision = None,
    hf_overrides: flags.HfOverrides = None,
    max_model_len: flags.MaxModelLen = None,
) -> None:
    """Tune gamma and budget in the paper's three steps, by measurement, and write them to a config file.

    The file is for `vegas generate --config` and `vegas serve --config`. Tune on the texts, the hardware and the batch
    size (--prompts) that matter. An interrupted run goes on where it was when the command is repeated.
    """
    from vegas_bench.results.results import Result
    from vegas_bench.tune.tuner import AROUND, BUDGETS, GAMMAS, Tuner
    from vegas_bench.workloads import Encoder, WorkloadPrompt, parse
    from vegas_spec import config_file
    from vegas_spec.config import VegasConfig, check_choice, check_int
    from vegas_spec.engine.sampling_params import SamplingParams
    from vegas_spec.environment import environment, hardware

    check_choice("engine", engine, ["embedded", "vllm"])
    check_int("--repeats", repeats, 1)
    check_int("--prompts", prompts, 1)
    runs.check_outputs(out=out, result=result, csv=csv)
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
    for name, values in (("kv_budget", tried_budgets), ("num_speculative_tokens", tried_gammas)):
        for value in values:
            VegasConfig.from_dict({**base.to_dict(), name: value})
    if policy in ("dense", "full"):
        raise UsageError(f"policy {policy} has no budget to tune; tune vegas, or a baseline that selects")
    if out.suffix in (".yaml", ".yml"):  # `vegas serve` would take it for vLLM's own
        raise UsageError(f"a config file is TOML, or JSON if its name ends in .json; got {out}")
    arguments = runs.read_engine_args(engine, engine_args)
    settings: dict[str, Any] = {"engine": engine, "workload": workload, "dtype": dtype}
    settings |= {"revision": revision, "hf_overrides": hf_overrides}

    def texts_for(encoder: Encoder, length: int) -> list[WorkloadPrompt]:
        common = {"prompts": prompts, "min_tokens": min_prompt_tokens, "max_tokens": max_prompt_tokens}
        return spec.build(encoder, length - max_tokens, **common)

    measure_with: Callable[[Journal, Watch, int], Measure]
    if engine == "vllm":
        from vegas_bench.measure.vllm_side import check_vllm, speculative_config
        from vegas_bench.tune.vllm_speed import VllmSpeed
        from vegas_spec.engine.loading import load_tokenizer, read_context_length

        check_vllm()
        speculative_config(base)
        place = flags.place_of(model, console)
        context = max_model_len or read_context_length(place, revision)
        texts = texts_for(Encoder(load_tokenizer(place, revision), model), context)
        tokens = [each.prompt["prompt_token_ids"] for each in texts]
        limits = {"max_model_len": min(context, max(map(len, tokens)) + max_tokens + 64), "max_num_seqs": len(texts)}
        vllm_args = runs.vllm_arguments(place, dtype, revision, hf_overrides, {**limits, **arguments})
        log = result.with_name(f"{result.name}.vllm.log")

        def measure_with(journal: Journal, watch: Watch, most: int) -> Measure:
            return VllmSpeed(vllm_args, tokens, temperature, max_tokens, repeats, log, journal, watch, most)

        settings["engine_args"] = arguments
    else:
        from vegas_bench.tune.embedded_speed import EmbeddedSpeed

        llm = flags.load(
            model,
            console,
            dtype=dtype,
            device=device,
            revision=revision,
            hf_overrides=hf_overrides,
            max_model_len=max_model_len,
            max_num_seqs=prompts,
            attention=attention,
        )
        texts = texts_for(Encoder.of(llm), llm.max_model_len)

        def measure_with(journal: Journal, watch: Watch, most: int) -> Measure:
            return EmbeddedSpeed(llm, [each.prompt for each in texts], params, repeats, journal, watch, most)

        settings["dtype"] = str(llm.model.dtype).removeprefix("torch.")
        settings |= {"device": str(llm.model.device), "attention": attention}
    lengths = [len(each.prompt["prompt_token_ids"]) for each in texts]
    settings |= {"context": round(statistics.mean(lengths)), "batch": len(texts), "lengths": lengths}
    settings |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "repeats": repeats}
    settings["base"] = base.to_dict()
    run = {"kind": "tuning", "model": model, "hardware": hardware(), **settings}
    with runs.journal_of(result, run, restart, console) as journal:
        with runs.progress_of(console) as watch:
            most = 1 + 2 * len(tried_budgets) + len(tried_gammas) + len(AROUND)
            measure = measure_with(journal, watch, most)
            plain = measure(VegasConfig(policy="full", num_speculative_tokens=1, kv_budget=1.0))
            tuner = Tuner(measure, base, plain, tried_budgets, tried_gammas)
            config = tuner.run()
        settings |= {"plain_tokens_per_second": plain.tokens_per_second, "chosen": config.to_dict()}
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
    else:
        tuning_curves.show(tuner, config, plain, out)
