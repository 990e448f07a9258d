"""Accepted drafts per iteration on a real model, by policy and by what verification sums.

    python benchmarks/acceptance.py MODEL --documents long_documents.jsonl --out benchmarks/results/acceptance.json

Prompts are long documents (a JSONL file with ``text``) and standard-library source, completed greedily for a fixed
number of tokens. For each variant: the mean over prompts of accepted drafts per iteration, the lowest and the highest
prompt, and the share of the cache that drafting really read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from vegas_spec import LLM, RequestOutput, SamplingParams
from vegas_spec.eval.environment import environment
from vegas_spec.eval.workloads import Encoder, WorkloadPrompt, parse

VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {"policy": "dense"},
    "vegas (default: weight, ends, kv_head)": {},
    "vegas, weight, ends, layer": {"granularity": "layer"},
    "vegas, weight, all, kv_head": {"rows": "all"},
    "vegas, weight, last, kv_head": {"rows": "last"},
    "vegas, logit, ends, kv_head": {"score": "logit"},
    "vegas, logit, ends, layer": {"score": "logit", "granularity": "layer"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=Path, help="JSONL file of long documents")
    parser.add_argument("--num-documents", type=int, default=5)
    parser.add_argument("--num-sources", type=int, default=5, help="prompts of standard-library source")
    parser.add_argument("--min-prompt-tokens", type=int, default=12_288)
    parser.add_argument("--max-prompt-tokens", type=int, default=16_384)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--variants", nargs="*", help="some of: " + "; ".join(VARIANTS))
    parser.add_argument("--batch", type=int, default=10, help="prompts that run at once")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention", default="torch", help="torch or kernels")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    llm = LLM(
        arguments.model,
        dtype=arguments.dtype,
        device=arguments.device,
        attention=arguments.attention,
        max_num_seqs=arguments.batch,
    )
    prompts = workload(llm, arguments)
    params = SamplingParams(temperature=0, max_tokens=arguments.max_tokens, ignore_eos=True)
    rows = []
    for name in arguments.variants or VARIANTS:
        engine = llm.with_config(**VARIANTS[name])
        begin = time.perf_counter()
        per_prompt = []
        for prompt, output in zip(prompts, generate(engine, prompts, params), strict=True):
            length = len(output.prompt_token_ids)
            kind = {"prompt": prompt.name, "kind": prompt.kind, "prompt_tokens": length}
            per_prompt.append({**kind, **output.stats.to_dict()})
        accepted = [each["accepted_per_draft"] for each in per_prompt]
        rows.append(
            {
                "variant": name,
                "config": engine.config.to_dict(),
                "mean": statistics.mean(accepted),
                "lowest": min(accepted),
                "highest": max(accepted),
                "draft_kv_share": statistics.mean(each["draft_kv_share"] for each in per_prompt),
                "prompts": per_prompt,
            }
        )
        print(f"\r{describe(rows[-1])}  [{time.perf_counter() - begin:.0f} s]", flush=True)
        if arguments.out:
            result = {**environment(), "model": Path(arguments.model).name, "dtype": str(llm.model.dtype)}
            result |= {"attention": arguments.attention, "rows": rows}
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def generate(engine: LLM, prompts: list[WorkloadPrompt], params: SamplingParams) -> list[RequestOutput]:
    """Complete all prompts as one batch, telling how far they are."""
    outputs: dict[str, RequestOutput] = {}
    done = 0
    for update in engine.stream([prompt.prompt for prompt in prompts], params):
        outputs[update.output.request_id] = update.output
        done += update.new_tokens
        print(f"\r{len(outputs)} prompts, {done} tokens", end="", file=sys.stderr)
    return [outputs[str(number)] for number in range(len(prompts))]


def workload(llm: LLM, arguments: argparse.Namespace) -> list[WorkloadPrompt]:
    """Documents and source, of lengths spread over the wanted range."""
    low, high = arguments.min_prompt_tokens, arguments.max_prompt_tokens
    asked = [(f"jsonl:file={arguments.documents}", arguments.num_documents)] if arguments.documents else []
    prompts = []
    for spec, count in [*asked, ("source", arguments.num_sources)]:
        prompts += parse(spec).build(Encoder.of(llm), high, prompts=count, min_tokens=low, max_tokens=high)
    return prompts


def describe(row: dict[str, Any]) -> str:
    return (
        f"{row['variant']:<40} mean {row['mean']:.2f}  lowest {row['lowest']:.2f}  highest {row['highest']:.2f}  "
        f"share of the cache read {row['draft_kv_share']:.1%}"
    )


if __name__ == "__main__":
    main()
