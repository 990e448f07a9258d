"""Decode throughput of vLLM with Vegas against stock vLLM, one after the other in one run.

    python benchmarks/vllm_decode.py MODEL --context 28000 --batch 32 --prompts source --out benchmarks/results/X.json
    python benchmarks/vllm_decode.py --shape qwen3-8b --context 32768 --batch 16 --acceptance 0.98,0.95,0.9,0.85,0.8,0.7

Each side is an engine in a process of its own, with the same limits. All prompts are read first and stay in the prefix
cache; then the batch generates, and ``decode tokens/s = batch * (N - 1) / (time for N tokens - time for 1 token)``,
several times. With ``--shape`` the weights are random, the cache is filled with noise by vLLM's decode bench connector
instead of being read in, and acceptance is imposed, by vLLM's synthetic rejection, at the unconditional rates given.
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

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262_144,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "eos_token_id": 151_645,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": {
        **QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-1.7b": {
        **QWEN3,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
}
SIDES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "vegas": {"method": "vegas"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
}


def main() -> None:
    arguments = parse()
    if arguments.side:
        print(json.dumps(measure(arguments)))
        return
    from vegas_spec.eval.environment import environment

    result: dict[str, Any] = {
        **environment(),
        "model": arguments.shape or Path(arguments.model).name,
        "context": arguments.context,
        "batch": arguments.batch,
        "temperature": arguments.temperature,
        "max_tokens": arguments.max_tokens,
        "sides": {},
    }
    for side in arguments.sides:
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        # vLLM logs to the same place.
        [measured] = [line for line in lines if line.startswith('{"tokens_per_second"')]
        result["sides"][side] = json.loads(measured)
        print(side, measured, flush=True)
    stock = result["sides"].get("stock")
    if stock:
        for side in result["sides"].values():
            side["speedup"] = side["tokens_per_second"]["median"] / stock["tokens_per_second"]["median"]
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model's name or folder; leave out with --shape")
    parser.add_argument("--tokenizer", help="where the model's folder has none, as with GGUF")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--context", type=int, required=True, help="prompt tokens per request")
    parser.add_argument("--batch", type=int, required=True, help="requests")
    parser.add_argument(
        "--prompts", choices=["random", "source"], default="random", help="source: the standard library's"
    )
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--acceptance", help="with --shape: chance that drafts 1, 2, ... are all accepted, by commas")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, further keys of Vegas")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON, further arguments of both engines")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["stock", "vegas"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if bool(arguments.model) == bool(arguments.shape):
        parser.error("give a model or --shape")
    if arguments.acceptance and not arguments.shape:
        parser.error("--acceptance imposes acceptance, which is only meaningful for random weights: give --shape")
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One side: tokens per second of every repeat, drafts and acceptance, seconds to read the prompts."""
    from vllm import LLM, SamplingParams

    speculative = SIDES[arguments.side]
    if speculative and arguments.side == "vegas":
        speculative = {**speculative, **arguments.options}
        if arguments.acceptance:
            rates = [float(rate) for rate in arguments.acceptance.split(",")]
            speculative |= {
                "num_speculative_tokens": len(rates),
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": rates,
            }
    engine: dict[str, Any] = {
        "max_model_len": arguments.context + arguments.max_tokens + 64,
        "max_num_seqs": arguments.batch,
        "disable_log_stats": False,
        "speculative_config": speculative,
        **arguments.engine,
    }
    with tempfile.TemporaryDirectory() as folder:
        if arguments.shape:
            Path(folder, "config.json").write_text(json.dumps(SHAPES[arguments.shape]))
            engine |= {
                "model": folder,
                "load_format": "dummy",
                "skip_tokenizer_init": True,
                "kv_transfer_config": {
                    "kv_connector": "DecodeBenchConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"fill_mean": 0.0, "fill_std": 1.0},
                },
            }
        else:
            engine |= {"model": arguments.model, "tokenizer": arguments.tokenizer}
        llm = LLM(**engine)
    prompts = [{"prompt_token_ids": tokens} for tokens in prompt_tokens(arguments, llm)]

    def seconds(max_tokens: int) -> float:
        sampling = SamplingParams(
            temperature=arguments.temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start

    reading = seconds(1)
    seconds(32)
    before, rates = counters(llm), []
    for _ in range(arguments.repeats):
        first = seconds(1)
        rates.append(arguments.batch * (arguments.max_tokens - 1) / (seconds(arguments.max_tokens) - first))
    drafts, proposed, accepted = (now - then for now, then in zip(counters(llm), before, strict=True))
    return {
        "tokens_per_second": {"median": statistics.median(rates), "all": rates},
        "accepted_per_iteration": accepted / drafts if drafts else None,
        "acceptance": accepted / proposed if proposed else None,
        "seconds_to_read_prompts": reading,
        "speculative_config": speculative,
    }


def counters(llm: Any) -> list[float]:
    """Drafts, drafted tokens, accepted tokens, since the engine's start."""
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    return [values.get(f"vllm:spec_decode_{name}", 0) for name in names]


def prompt_tokens(arguments: argparse.Namespace, llm: Any) -> list[list[int]]:
    """As many prompts of the wanted length as the batch has requests, all different."""
    import random

    numbers = random.Random(0)
    if arguments.prompts == "random":
        return [[numbers.randrange(1000, 20_000) for _ in range(arguments.context)] for _ in range(arguments.batch)]
    files = sorted(path for path in Path(json.__file__).parents[1].rglob("*.py") if "test" not in path.parts)
    tokenizer = llm.get_tokenizer()
    prompts: list[list[int]] = []
    while len(prompts) < arguments.batch:
        tokens: list[int] = []
        while len(tokens) < arguments.context:
            text = numbers.choice(files).read_text(encoding="utf-8", errors="ignore")
            tokens.extend(tokenizer.encode(text, add_special_tokens=False))
        prompts.append(tokens[: arguments.context])
    return prompts


if __name__ == "__main__":
    main()
