"""What the embedded engine costs on a CPU, as ratios within one run, and how much memory it takes.

    python benchmarks/engine_cpu.py MODEL --out benchmarks/results/engine_cpu.json

- plain decoding against ``transformers.generate``, tokens per second, alternating, at one context;
- one draft step against one plain step, at a longer context;
- collecting scores and selecting, as a share of a verification;
- peak resident memory of a process that reads a prompt and generates, against one that does so with transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from vegas_spec.engine.phases import TorchPhases
from vegas_spec.engine.steps import Step

from vegas_spec import LLM, SamplingParams, VegasConfig
from vegas_spec.engine.attention import Rows
from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.kv_cache import KVCache
from vegas_spec.engine.source_text import source_prompt
from vegas_spec.environment import environment
from vegas_spec.policies import make_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=4096, help="of the comparison with transformers")
    parser.add_argument("--long-context", type=int, default=16_384, help="of the other figures")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=["plain_decoding", "phases", "peak_memory"], help="some of it")
    parser.add_argument("--memory-of", choices=["engine", "transformers"], help="run one side alone, print its peak")
    parser.add_argument("--tokens-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(memory_alone(arguments)))
        return

    result: dict[str, Any] = {**environment(), "model": Path(arguments.model).name}
    llm = LLM(arguments.model, dtype="bfloat16", policy="full")
    for measure in (plain_decoding, phases, peak_memory):
        name = measure.__name__
        if arguments.only and name not in arguments.only:
            continue
        result[name] = measure(llm, arguments)
        print(name, json.dumps(result[name], indent=1), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def plain_decoding(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds per decoded token of both, alternating; the prompt's own time is subtracted."""
    reference = load_reference(arguments.model)
    tokens = source_prompt(Encoder.of(llm), arguments.context)[1]["prompt_token_ids"]
    ours, theirs = [], []
    for _ in range(arguments.repeats):
        stats = llm.generate(
            {"prompt_token_ids": tokens},
            SamplingParams(temperature=0, max_tokens=arguments.max_tokens, ignore_eos=True),
        )[0].stats
        ours.append(
            (stats.seconds["verify"] + stats.seconds["accept"] + stats.seconds["select"]) / arguments.max_tokens
        )
        theirs.append(reference_seconds_per_token(reference, tokens, arguments.max_tokens))
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "context": arguments.context,
        "engine_ms_per_token": [1e3 * x for x in ours],
        "transformers_ms_per_token": [1e3 * x for x in theirs],
        "speed_against_transformers": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
    }


def phases(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one step of each kind, in turn, over a cache of random entries: times do not depend on what they are."""
    model, config = llm.model, VegasConfig()
    length, rows = arguments.long_context, config.num_speculative_tokens + 1
    cache = KVCache(model.layers, 1, length + 4 * rows, model.dtype, model.device)
    for entries in (*cache.keys, *cache.values):
        entries.normal_()
    dense, vegas = (TorchPhases(cache, make_policy(each), each) for each in (VegasConfig(policy="dense"), config))
    [request] = llm._requests({"prompt_token_ids": [0] * (length + 3)}, SamplingParams(max_tokens=4 * rows))
    request.slot, request.prefix_len = 0, length + 1
    verified = Rows(0, length, rows)

    def forward(step: Step, positions: range) -> None:
        model.forward([0] * len(positions), positions, step, range(len(positions)))

    def select() -> None:
        vegas.select([request], [2])

    def draft() -> None:
        for position in range(length + 3, length + 3 + config.num_speculative_tokens):
            forward(vegas.draft([Rows(0, position, 1)]), range(position, position + 1))

    steps = {
        "plain_step": lambda: forward(dense.verify([Rows(0, length, 1)]), range(length, length + 1)),
        "verification": lambda: forward(dense.verify([verified]), range(length, length + rows)),
        "verification_with_scores": lambda: forward(vegas.verify([verified]), range(length, length + rows)),
        "select": select,
        "draft": draft,
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    with torch.inference_mode():
        for repeat in range(4 * arguments.repeats + 2):
            for name, step in steps.items():
                begin = time.perf_counter()
                step()
                if repeat >= 2:  # the first ones warm up
                    seconds[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    overhead = median["verification_with_scores"] - median["verification"] + median["select"]
    return {
        "context": length,
        "milliseconds": {name: 1e3 * value for name, value in median.items()},
        "milliseconds_low": {name: 1e3 * min(values) for name, values in seconds.items()},
        "draft_step_over_plain_step": median["draft"] / config.num_speculative_tokens / median["plain_step"],
        "collect_and_select_share_of_verification": overhead / median["verification"],
    }


def peak_memory(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Peak resident bytes of either side in a process of its own."""
    length = arguments.long_context - arguments.max_tokens
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens_file = Path(folder) / "tokens.json"
        tokens_file.write_text(json.dumps(source_prompt(Encoder.of(llm), length)[1]["prompt_token_ids"]))
        for side in ("engine", "transformers"):
            command = [
                sys.executable,
                __file__,
                arguments.model,
                "--memory-of",
                side,
                "--tokens-file",
                str(tokens_file),
            ]
            command += ["--max-tokens", str(arguments.max_tokens)]
            peaks[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["peak"]
    return {
        "context": arguments.long_context,
        "peak_bytes": peaks,
        "engine_over_transformers": peaks["engine"] / peaks["transformers"],
    }


def memory_alone(arguments: argparse.Namespace) -> dict[str, int]:
    tokens = json.loads(arguments.tokens_file.read_text())
    if arguments.memory_of == "engine":
        llm = LLM(arguments.model, dtype="bfloat16")
        params = SamplingParams(temperature=0, max_tokens=arguments.max_tokens, ignore_eos=True)
        llm.generate({"prompt_token_ids": tokens}, params)
    else:
        reference = load_reference(arguments.model)
        generate(reference, tokens, arguments.max_tokens)
    # Not getrusage: its figure begins with what the parent had in memory when it started this process.
    status = Path("/proc/self/status").read_text()
    return {"peak": int(status.partition("VmHWM:")[2].split()[0]) * 1024}


def load_reference(model: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()


def generate(reference: Any, tokens: list[int], count: int) -> None:
    prompt = torch.tensor([tokens])
    reference.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        repetition_penalty=1.0,
        pad_token_id=0,
    )


def reference_seconds_per_token(reference: Any, tokens: list[int], count: int) -> float:
    times = []
    for length in (1, count + 1):
        begin = time.perf_counter()
        generate(reference, tokens, length)
        times.append(time.perf_counter() - begin)
    return (times[1] - times[0]) / count


if __name__ == "__main__":
    main()
