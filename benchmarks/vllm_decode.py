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
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _vllm_models import SHAPES, shape_arguments
from rich.console import Console

from vegas_bench.measure.job_process import JobProcess
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.throughput_rows import Shape, vllm_row
from vegas_bench.measure.variants import Variant
from vegas_bench.results.results import Result, ResultError, ThroughputRow, save
from vegas_spec.cli.load import place_of
from vegas_spec.config import VegasConfig

SIDES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "vegas": {"method": "vegas"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "dense": {"method": "vegas", "policy": "dense"},
    "stream": {"method": "vegas", "policy": "stream"},
    "quest": {"method": "vegas", "policy": "quest"},
    "specextend": {"method": "vegas", "policy": "specextend"},
}


PROGRAM = [sys.executable, str(Path(__file__).with_name("_vllm_side.py"))]


def main() -> None:
    arguments = parse()
    sides: dict[str, dict[str, Any]] = {}
    rows = []
    for side, line in answers(arguments):
        about = sides.setdefault(side, {"speculative_config": speculative_config(side, arguments)})
        if "case" not in line:
            about |= line
            continue
        shape = Shape(**line["case"])
        if "profile" in line:
            about.setdefault("profile", {})[shape.key] = line["profile"]
        else:
            rows.append(row(side, about, shape, line["measured"]))
            print(side, json.dumps(line), file=sys.stderr, flush=True)
    shared = ("options", "engine", "max_tokens", "repeats", "prompts")
    settings = {name: getattr(arguments, name) for name in shared}
    if arguments.acceptance:
        settings["imposed_acceptance"] = arguments.acceptance
    name = arguments.shape or Path(arguments.model).name
    result = Result.of_this_run("throughput", name, {**settings, "sides": sides}, rows)
    print(json.dumps(result.to_dict(), indent=1))
    if arguments.out:
        save(result, arguments.out)


def answers(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the sides, and give their names with each line that they answer; one that fails is left out from there on."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not arguments.together:
            for side in arguments.sides:
                with JobProcess(side, PROGRAM, job(side, arguments, folder)) as process:
                    turn(side, folder).touch()
                    yield from told(side, process)
            return
        started = [
            (side, stack.enter_context(JobProcess(side, PROGRAM, job(side, arguments, folder))))
            for side in arguments.sides
        ]
        lines = {side: told(side, process) for side, process in started}
        for waiting in lines.values():
            yield from [line for line in [next(waiting, None)] if line]  # it has started
        for side, waiting in lines.items():
            turn(side, folder).touch()
            yield from waiting


def told(side: str, process: JobProcess) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its lines; the others are not to wait for one that fails."""
    try:
        for line in process.lines():
            yield side, line
    except ResultError as error:
        print(error, file=sys.stderr)


def turn(side: str, folder: Path) -> Path:
    """The file whose existence tells a side to measure."""
    return folder / f"{side}.turn"


def row(side: str, about: dict[str, Any], shape: Shape, measured: dict[str, Any]) -> ThroughputRow:
    """A case of a side in the terms of `vegas report`, with what the cost model predicts of it."""
    speculative = about["speculative_config"] or {"method": "vegas", "policy": "full"}
    if speculative["method"] != "vegas":
        at = {"context": shape.context, "batch": shape.batch, "temperature": shape.temperature}
        return ThroughputRow(policy=side, config=speculative, engine="vllm", **at, **measured)
    known = {name: value for name, value in speculative.items() if name in VegasConfig.__dataclass_fields__}
    variant = Variant("full" if side == "stock" else side, VegasConfig.from_dict(known))
    return vllm_row(shape, variant, ModelSize(**about["size"]), measured)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a name of `vegas models` or vLLM's, or a folder; leave out with --shape"
    )
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


def job(side: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What `_vllm_side.py` is to do for a side."""
    engine: dict[str, Any] = {
        "max_model_len": max(context for context, _ in arguments.cases) + arguments.max_tokens + 64,
        "max_num_seqs": max(batch for _, batch in arguments.cases),
        "gpu_memory_utilization": 0.92,
        "speculative_config": speculative_config(side, arguments),
    }
    if arguments.together:
        # vLLM's memory profile would take the other engines' memory for its own.
        engine |= {"gpu_memory_utilization": 0.9 / len(arguments.sides), "kv_cache_memory_bytes": arguments.kv_bytes}
    if arguments.shape:
        engine |= shape_arguments(arguments.shape, folder)
    else:
        model = place_of(arguments.model, Console(stderr=True))
        engine |= {"model": model, "tokenizer": arguments.tokenizer}
    return {
        "engine": engine | arguments.engine,
        "turn": str(turn(side, folder)),
        "cases": [
            {"context": context, "batch": batch, "temperature": temperature}
            for context, batch in arguments.cases
            for temperature in arguments.temperatures
        ],
        "prompts": arguments.prompts,
        "documents": str(arguments.documents) if arguments.documents else None,
        "max_tokens": arguments.max_tokens,
        "repeats": arguments.repeats,
        "first_token": arguments.first_token,
        "profile": arguments.profile,
    }


def speculative_config(side: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What a side asks of vLLM."""
    asked = SIDES[side]
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


if __name__ == "__main__":
    main()
