"""``vegas tune``: find gamma and budget for a model, a workload and this hardware, and write them to a config file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vegas_bench.cli import runs, tuning_curves
from vegas_bench.cli.in_vllm import IN_VLLM, InVllm, encoder_of
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.cli.load import load
from vegas_spec.engine.sampling_params import SamplingParams


@flags.with_groups
def tune(
    model: flags.Model,
    workload: runs.Workload = "source",
    engine: runs.Engine = "embedded",
    budgets: Annotated[str | None, typer.Option("--budgets", help="What step 1 tries, by commas.")] = None,
    gammas: Annotated[str | None, typer.Option("--gammas", help="What step 2 tries, by commas.")] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Run as one batch.")] = 4,
    min_prompt_tokens: runs.MinPromptTokens = None,
    max_prompt_tokens: runs.MaxPromptTokens = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Timed runs of each setting; what they differ by counts as equal.")
    ] = 3,
    out: Annotated[
        Path, typer.Option("--out", help="The config file to write, TOML or JSON.", rich_help_panel="Result")
    ] = Path("vegas.toml"),
    result: Annotated[
        Path,
        typer.Option(
            "--result", help="Where the curves go, as JSON; the journal lies beside it.", rich_help_panel="Result"
        ),
    ] = Path("tuning.json"),
    as_json: flags.Json = False,
    attention: runs.Attention = "torch",
    *,
    drafting: Annotated[
        flags.Drafting,
        flags.DRAFTING.without("kv_budget", "adaptive").saying(num_speculative_tokens="Gamma of step 1."),
    ],
    sampling: Annotated[SamplingParams, runs.SAMPLING.without("ignore_eos", ignore_eos=True)],
    storing: Annotated[runs.Storing, runs.STORING.without("out")],
    in_vllm: Annotated[InVllm, IN_VLLM.only("engine_args")],
    loading: Annotated[flags.Loading, flags.LOADING],
) -> None:
    """Tune gamma and budget in the paper's three steps, by measurement, and write them to a config file.

    The file is for `vegas generate --config` and `vegas serve --config`. Tune on the texts, the hardware and the batch
    size (--prompts) that matter. An interrupted run goes on where it was when the command is repeated.
    """
    from vegas_bench.measure.variants import Variant
    from vegas_bench.results.results import Result
    from vegas_bench.tune import speed
    from vegas_bench.tune.tuner import AROUND, BUDGETS, GAMMAS, Tuner
    from vegas_bench.workloads import Encoder, parse
    from vegas_spec import config_file
    from vegas_spec.config import VegasConfig, check_int
    from vegas_spec.environment import environment
    from vegas_spec.policies import policy_class

    in_vllm.check(engine, model)
    check_int("--repeats", repeats, 2)  # one run says nothing of what runs differ by
    check_int("--prompts", prompts, 1)
    storing = runs.Storing(out=result, csv=storing.csv, restart=storing.restart)
    runs.check_outputs(out=out, result=result, csv=storing.csv)
    console = Console(stderr=True)
    spec, base, max_tokens = parse(workload), drafting.config, sampling.max_tokens or 1
    tried_budgets = BUDGETS if budgets is None else runs.numbers(budgets, "--budgets", float)
    tried_gammas = GAMMAS if gammas is None else runs.numbers(gammas, "--gammas", int)
    for name, values in (("kv_budget", tried_budgets), ("num_speculative_tokens", tried_gammas)):
        for value in values:
            VegasConfig.from_dict({**base.to_dict(), name: value})
    if not policy_class(base.policy).selects:
        raise UsageError(f"policy {base.policy} has no budget to tune; tune vegas, or a baseline that selects")
    if out.suffix in (".yaml", ".yml"):  # `vegas serve` would take it for vLLM's own
        raise UsageError(f"a config file is TOML, or JSON if its name ends in .json; got {out}")
    settings: dict[str, Any] = {"engine": engine, "workload": workload, "dtype": loading.dtype}
    settings |= {"revision": loading.revision, "hf_overrides": loading.hf_overrides}
    wanted = {"prompts": prompts, "min_tokens": min_prompt_tokens, "max_tokens": max_prompt_tokens}
    notes: list[str] = []
    if engine == "vllm":
        from vegas_bench.measure.vllm_side import speculative_config, variant_of
        from vegas_spec.engine.loading import read_context_length

        if attention != "torch":
            raise UsageError("--attention is the embedded engine's; leave it out with vLLM, which has its own")
        speculative_config(variant_of(base))
        arguments = in_vllm.engine(model, loading, {"max_num_seqs": prompts}, 1, console)
        context = loading.max_model_len or read_context_length(arguments["model"], loading.revision)
        texts = spec.build(encoder_of(model, arguments), context - max_tokens, notes.append, **wanted)
        tokens = [each.prompt["prompt_token_ids"] for each in texts]
        arguments = {"max_model_len": min(context, max(map(len, tokens)) + max_tokens + 64), **arguments}
        task = {"prompts": tokens, "temperature": sampling.temperature, "max_tokens": max_tokens, "repeats": repeats}
        run = speed.in_vllm(arguments, task, storing.beside("vllm.log"))
        settings["engine_args"] = in_vllm.arguments
    else:
        llm = load(model, console, loading, max_num_seqs=prompts, attention=attention)
        texts = spec.build(Encoder.of(llm), llm.max_model_len - max_tokens, notes.append, **wanted)
        run = speed.in_embedded_engine(llm, [each.prompt for each in texts], sampling, repeats)
        settings["dtype"] = str(llm.model.dtype).removeprefix("torch.")
        settings |= {"device": str(llm.model.device), "attention": attention}
    lengths = [len(each.prompt["prompt_token_ids"]) for each in texts]
    settings |= {"context": round(statistics.mean(lengths)), "batch": len(texts), "lengths": lengths}
    settings |= {"max_tokens": max_tokens, "temperature": sampling.temperature, "seed": sampling.seed}
    settings |= {"repeats": repeats, "base": base.to_dict()}
    runs.note(console, settings, notes)

    def entries(budget: float) -> Hashable:
        config = VegasConfig.from_dict({**base.to_dict(), "kv_budget": budget})
        return Variant("", config).entries(lengths, max_tokens)

    with storing.journal("tuning", model, settings, console) as journal:
        with runs.progress_of(console) as watch:
            most = 1 + 2 * len(tried_budgets) + len(tried_gammas) + len(AROUND)
            measure = speed.WorkloadSpeed(run, journal, watch, most)
            plain = measure(VegasConfig(policy="full", num_speculative_tokens=1, kv_budget=1.0))
            tuner = Tuner(measure, base, plain, tried_budgets, tried_gammas, entries)
            config = tuner.run()
        runs.note(console, settings, tuner.notes)
        settings |= {"plain_tokens_per_second": plain.tokens_per_second, "chosen": config.to_dict()}
        stored = Result.of_this_run("tuning", Path(model).name, settings, tuner.rows)
        about = environment()
        tuned_on = {"model": Path(model).name, "hardware": about["hardware"]}
        tuned_on |= {
            name: settings[name] for name in ("engine", "workload", "context", "batch", "temperature", "dtype")
        }
        tuned_on |= {name: about[name] for name in ("date", "command", "versions")}
        config_file.save(config_file.ConfigFile(config.to_dict(), tuned_on), out)
        storing.store(stored, journal, console)
    if as_json:
        typer.echo(json.dumps(stored.to_dict()))
    else:
        tuning_curves.show(tuner, config, plain, out)
