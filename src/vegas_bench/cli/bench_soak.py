"""``vegas bench soak``: a while of serving, judged against stock vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vegas_bench.cli import runs
from vegas_bench.cli.in_vllm import IN_VLLM, InVllm, encoder_of, prompts_for
from vegas_bench.results.results import SOAK_SCHEMA
from vegas_bench.results.wording import count_text
from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.config import check_int, invalid

_TEXTS = 24
"""Texts that prompts are pieces of. Chosen by hand."""


@flags.with_groups
def soak(
    model: flags.Model,
    policy: Annotated[
        str, typer.Option("--policy", help="What drafts, with options: vegas:rows=all, or vegas:fall_back=true.")
    ] = "vegas",
    seconds: Annotated[float, typer.Option("--seconds", help="How long requests come.")] = 100.0,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second, on average.")] = 2.0,
    workload: runs.Workload = "texts",
    min_prompt_tokens: Annotated[int, typer.Option("--min-prompt-tokens", help="Of the shortest prompts.")] = 100,
    max_prompt_tokens: Annotated[int, typer.Option("--max-prompt-tokens", help="Of the longest prompts.")] = 30_000,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Of the longest answers.")] = 200,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", help="Most requests that run at once.")] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Which requests, and when.")] = 0,
    as_json: flags.Json = False,
    *,
    in_vllm: Annotated[InVllm, IN_VLLM.only("engine_args")],
    storing: Annotated[
        runs.Storing,
        runs.STORING.only("out", "restart", out=Path("soak.json")).saying(
            out="Where the result goes, as JSON.", restart="Replace a result that is there."
        ),
    ],
    loading: Annotated[flags.Loading, flags.LOADING.without("max_model_len")],
) -> None:
    """Serve requests of mixed lengths at random times in vLLM, abort some, and judge the answers by stock vLLM's.

    Drafting is never suspended, unless the policy's option fall_back says that it may be. Exit code 1 if an answer
    differs from stock's by more than a numerical tie, or if nothing was drafted.
    """
    from vegas_bench.measure.soak import failure, make_requests
    from vegas_bench.measure.soak import soak as run_soak
    from vegas_bench.measure.vllm_side import Lookup, speculative_config, vllm_sides
    from vegas_spec.config import VegasConfig
    from vegas_spec.engine.loading import read_context_length
    from vegas_spec.environment import environment

    in_vllm.check("vllm", model)
    storing.check()
    if storing.out.is_file() and not storing.restart:
        raise UsageError(f"{storing.out} is there already; add --restart to replace it, or choose another --out")
    for flag, value in {"--seconds": seconds, "--rate": rate}.items():
        if not value > 0:
            raise invalid(flag, "a number above 0", value)
    check_int("--max-prompt-tokens", max_prompt_tokens, 1)
    check_int("--min-prompt-tokens", min_prompt_tokens, 1, max_prompt_tokens)
    check_int("--max-tokens", max_tokens, 1)
    [side] = vllm_sides([policy], [VegasConfig.kv_budget], [VegasConfig.num_speculative_tokens])
    told = speculative_config(side)
    if told is None or isinstance(side, Lookup):
        raise UsageError(f"a soak is of a policy that drafts; got {policy}")
    console = Console(stderr=True)
    limits = {"max_model_len": max_prompt_tokens + max_tokens + 64, "max_num_seqs": max_num_seqs}
    engine = in_vllm.engine(model, loading, limits, 1, console)
    room = read_context_length(engine["model"], loading.revision)
    if engine["max_model_len"] > room:
        raise UsageError(
            f"--max-prompt-tokens {max_prompt_tokens}, --max-tokens {max_tokens} and 64 to spare are more than the "
            f"model's context of {room} tokens; lower one of them"
        )
    texts = prompts_for(encoder_of(model, engine), workload)(max_prompt_tokens, _TEXTS)
    requests = make_requests(
        texts, seconds=seconds, rate=rate, shortest=min_prompt_tokens, max_tokens=max_tokens, seed=seed
    )
    with runs.progress_of(console) as watch:
        measured = run_soak(engine, told, requests, storing.beside("vllm.log"), watch)
    about = environment()
    settings: dict[str, Any] = {"policy": policy, "speculative_config": told, "workload": workload, "seed": seed}
    settings |= {"seconds": seconds, "rate": rate, "max_tokens": max_tokens, "max_num_seqs": max_num_seqs}
    settings |= {"min_prompt_tokens": min_prompt_tokens, "max_prompt_tokens": max_prompt_tokens}
    settings |= {"engine_args": in_vllm.arguments, "dtype": loading.dtype}
    result = {"schema": SOAK_SCHEMA, "version": 1, "model": Path(model).name, "command": about.pop("command")}
    result |= {"environment": about, "settings": settings, "failure": failure(measured), **measured}
    runs.store_json(result, storing.out, console)
    typer.echo(json.dumps(result) if as_json else describe(result))
    if result["failure"]:
        raise typer.Exit(1)


def describe(result: dict[str, Any]) -> str:
    """Tell a soak in a few lines."""
    served, judged = result["served"], result["judged"]
    lines = [
        f"{count_text(served['sent'], 'request')} in {served['seconds']:.0f} s: {served['finished']} finished, "
        f"{served['aborted']} aborted, {count_text(served['preemptions'], 'preemption')}",
        f"{count_text(served['drafts'], 'draft')}"
        + ("" if not served["drafts"] else f", {served['accepted_per_iteration']:.2f} tokens of each accepted"),
        f"{len(judged['ties']) + len(judged['faults'])} differ from stock vLLM, {len(judged['faults'])} by more than a "
        f"tie; stock differs from itself in {judged['stock_differing_from_itself']}, by the batch",
    ]
    if memory := served["free_bytes"]:
        lines.append(f"free on the device, early and late: {memory[0] / 1e9:.2f} and {memory[-1] / 1e9:.2f} GB")
    lines.append(f"failed: {result['failure']}" if result["failure"] else "passed")
    return "\n".join(lines)
