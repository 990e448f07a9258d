"""Decode throughput of vLLM with Vegas against stock vLLM, in one run.

    python benchmarks/vllm_decode.py MODEL --cases 28000x32 --prompts text --temperatures 0 0.7 --out X.json
    python benchmarks/vllm_decode.py --shape qwen3-8b --cases 32768x16 130000x4 --acceptance 0.95,0.9,0.8,0.7,0.6,0.5

Each side is an engine in a process of its own, with the same limits, and measures every case (context x batch). All
prompts are read first and stay in the prefix cache; then the batch generates, several times. Decode tokens/s are those
of the steps in which all requests decode: from the last request's first token to the first request's end. With
``--shape`` the weights are random, the cache is filled with noise by vLLM's decode bench connector instead of being
read in, and acceptance is imposed, by vLLM's synthetic rejection, at the unconditional rates given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _vllm_models import SHAPES, prompt_tokens, shape_arguments

SIDES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "vegas": {"method": "vegas"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "dense": {"method": "vegas", "policy": "dense"},
    "stream": {"method": "vegas", "policy": "stream"},
    "quest": {"method": "vegas", "policy": "quest"},
}


def main() -> None:
    arguments = parse()
    if arguments.side:
        measure(arguments)
        return
    from vegas_spec.eval.results import Result, save

    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for side in arguments.sides:
            running[side] = start(side, Path(folder))
            if not arguments.together:
                finish({side: running[side]}, Path(folder))
        finish(running, Path(folder))
        found = {side: Path(folder, f"{side}.json") for side in arguments.sides}
        sides = {side: json.loads(path.read_text()) for side, path in found.items() if path.exists()}
    shared = ("options", "engine", "max_tokens", "repeats", "prompts")
    settings = {name: getattr(arguments, name) for name in shared}
    if arguments.acceptance:
        settings["imposed_acceptance"] = arguments.acceptance
    rows = [row(side, case, measured) for side, measured in sides.items() for case in measured.pop("cases")]
    name = arguments.shape or Path(arguments.model).name
    result = Result.of_this_run("throughput", name, {**settings, "sides": sides}, rows)
    print(json.dumps(result.to_dict(), indent=1))
    if arguments.out:
        save(result, arguments.out)


def row(side: str, case: dict[str, Any], measured: dict[str, Any]) -> Any:
    """A case of a side in the terms of `vegas report`, with what the cost model predicts of it."""
    from vegas_spec.config import VegasConfig
    from vegas_spec.eval.bench_throughput import predicted_speedup
    from vegas_spec.eval.cost_model import ModelSize
    from vegas_spec.eval.results import ThroughputRow

    speculative = measured["speculative_config"] or {}
    known = {name: value for name, value in speculative.items() if name in VegasConfig().to_dict()}
    vegas = speculative.get("method") == "vegas"
    config = VegasConfig.from_dict(known) if vegas else None
    prediction = None
    if config is not None:
        share = config.budget(case["context"]) / case["context"] if config.policy == "vegas" else 1.0
        size, gamma = ModelSize(**measured["size"]), config.num_speculative_tokens
        accepted = case["accepted_per_iteration"]
        prediction = predicted_speedup(size, case["context"], case["batch"], gamma, accepted, share)
    return ThroughputRow(
        policy="full" if side == "stock" else side,
        config=config.to_dict() if config else speculative,
        engine="vllm",
        predicted_speedup=prediction,
        **case,
    )


def start(side: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a side, which leaves what it measured in ``folder/side.json``; its log goes to stderr."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", str(folder)]
    environment = {**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    return subprocess.Popen(command, stdout=sys.stderr, env=environment)


def finish(running: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait for sides; the others are not to wait for one that fails."""
    while any(process.poll() is None for process in running.values()):
        time.sleep(0.2)
        for side, process in running.items():
            if process.poll():
                (folder / f"{side}.ready").touch()
                (folder / f"{side}.done").touch()
    for side, process in running.items():
        if process.returncode:
            print(f"{side} failed with exit code {process.returncode}", file=sys.stderr)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model's name or folder; leave out with --shape")
    parser.add_argument("--tokenizer", help="where the model's folder has none, as with GGUF")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--cases", nargs="+", required=True, help="context x batch, as in 28000x32")
    parser.add_argument("--prompts", choices=["random", "text"], default="random", help="text: source and documents")
    parser.add_argument("--documents", type=Path, help="with --prompts text: JSONL file of long documents")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-token", type=int, nargs="*", default=[], help="prompt lengths to time the reading of")
    parser.add_argument("--acceptance", help="with --shape: chance that drafts 1, 2, ... are all accepted, by commas")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, further keys of Vegas")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON, further arguments of all engines")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["stock", "vegas"])
    parser.add_argument("--together", action="store_true", help="start all engines at once; they measure in turns")
    parser.add_argument("--kv-bytes", type=int, help="with --together: size of each engine's KV cache")
    parser.add_argument("--profile", action="store_true", help="also time by kernel and by the host's functions")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if bool(arguments.model) == bool(arguments.shape):
        parser.error("give a model or --shape")
    if arguments.acceptance and not arguments.shape:
        parser.error("--acceptance imposes acceptance, which is only meaningful for random weights: give --shape")
    if arguments.together and not arguments.kv_bytes:
        parser.error("--together needs --kv-bytes, since vLLM cannot measure what is free while others start")
    try:
        arguments.cases = [tuple(int(number) for number in case.split("x")) for case in arguments.cases]
    except ValueError:
        parser.error("--cases are context x batch, as in 28000x32")
    return arguments


def speculative_config(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What this side asks of vLLM."""
    asked = SIDES[arguments.side]
    if asked is None or asked["method"] != "vegas":
        return asked
    asked = {**asked, **arguments.options}
    if arguments.acceptance:
        rates = [float(rate) for rate in arguments.acceptance.split(",")]
        asked |= {
            "num_speculative_tokens": len(rates),
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": rates,
        }
    return asked


def measure(arguments: argparse.Namespace) -> None:
    """One side, all cases; what is measured is on disk at once."""
    from _vllm_side import Side

    engine: dict[str, Any] = {
        "max_model_len": max(context for context, _ in arguments.cases) + arguments.max_tokens + 64,
        "max_num_seqs": max(batch for _, batch in arguments.cases),
        "gpu_memory_utilization": 0.92,
        "speculative_config": speculative_config(arguments),
    }
    if arguments.together:
        # vLLM's memory profile would take the other engines' memory for its own.
        engine |= {"gpu_memory_utilization": 0.9 / len(arguments.sides), "kv_cache_memory_bytes": arguments.kv_bytes}
    result: dict[str, Any] = {"speculative_config": engine["speculative_config"], "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.shape:
            engine |= shape_arguments(arguments.shape, Path(folder))
        else:
            engine |= {"model": arguments.model, "tokenizer": arguments.tokenizer}
        side = Side(engine | arguments.engine)
    result |= {"size": side.size, "seconds_to_start": side.seconds_to_start, "kv_blocks": side.kv_blocks}
    tokenizer = side.llm.get_tokenizer() if arguments.prompts == "text" else None
    vocab_size = side.llm.llm_engine.vllm_config.model_config.get_vocab_size()
    wait_for_turn(arguments)

    def prompts(context: int, count: int) -> list[list[int]]:
        return prompt_tokens(context, count, vocab_size, tokenizer, arguments.documents)

    if arguments.first_token:
        result["seconds_to_first_token"] = {
            length: side.seconds_to_first_token(prompts(length, 5)[1:]) for length in arguments.first_token
        }
    for context, batch in arguments.cases:
        for temperature in arguments.temperatures:
            tokens = prompts(context, batch)
            case = {"context": context, "batch": batch, "temperature": temperature}
            case |= side.case(tokens, temperature, arguments.max_tokens, arguments.repeats)
            result["cases"].append(case)
            if arguments.profile:
                profile = result.setdefault("profile", {})
                profile[f"{context} x {batch}, temperature {temperature}"] = side.profile(tokens, temperature)
            print(arguments.side, json.dumps(case), file=sys.stderr, flush=True)
            write(arguments.folder / f"{arguments.side}.json", result)
    (arguments.folder / f"{arguments.side}.done").touch()


def write(path: Path, result: dict[str, Any]) -> None:
    """All or nothing."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(result))
    new.rename(path)


def wait_for_turn(arguments: argparse.Namespace) -> None:
    """Engines that start together measure one after the other, the first when all have started."""
    if not arguments.together:
        return
    (arguments.folder / f"{arguments.side}.ready").touch()
    before = arguments.sides[: arguments.sides.index(arguments.side)]
    awaited = [f"{side}.ready" for side in arguments.sides] + [f"{side}.done" for side in before]
    deadline = time.monotonic() + 900
    while not all((arguments.folder / name).exists() for name in awaited):
        if time.monotonic() > deadline:
            raise TimeoutError("another side did not start, or did not finish, in time")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
