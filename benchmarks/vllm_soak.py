"""A while of serving: requests of mixed lengths at random times, some aborted, judged against stock vLLM.

    python benchmarks/vllm_soak.py MODEL --documents long_documents.jsonl --seconds 100 --out soak.json

Vegas serves greedy requests whose prompts have 100 to 30,000 tokens and which come as a Poisson process; a tenth is
aborted while it runs. Then stock vLLM answers the finished ones, twice: as one batch, and a few at a time. Where a
request's tokens first differ, stock is asked for both tokens' log-probabilities after the common part: a gap of more
than 0.25 is a fault, a smaller one is a tie that another batch size can break too (how often, stock shows against
itself).
Memory of the device is read a third of the way through and at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _vllm_prompts import prompt_tokens

TIE = 0.25
"""Of the difference of two log-probabilities, which is that of the logits."""
NOT_AMONG_THE_BEST = 1000.0
"""Stands for the gap where stock does not have both tokens among its 20 best."""


def main() -> None:
    arguments = parse()
    if arguments.side:
        {"vegas": serve, "stock": answer}[arguments.side](arguments)
        return
    from vegas_spec.environment import environment

    with tempfile.TemporaryDirectory() as folder:
        for side in ("vegas", "stock"):
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", folder]
            child = {**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
            subprocess.run(command, stdout=sys.stderr, check=True, env=child)
        served, judged = (json.loads(Path(folder, f"{side}.json").read_text()) for side in ("vegas", "stock"))
    served.pop("requests")
    result = {**environment(), "model": Path(arguments.model).name, "served": served, "judged": judged}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if judged["faults"]:
        sys.exit(f"{len(judged['faults'])} requests differ from stock by more than a tie")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=Path)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second")
    parser.add_argument("--shortest", type=int, default=100, help="prompt tokens")
    parser.add_argument("--longest", type=int, default=30_000)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--options", type=json.loads, default={}, help="JSON, further keys of Vegas")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON, further arguments of both engines")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=["vegas", "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_engine(arguments: argparse.Namespace, speculative: dict[str, Any] | None) -> Any:
    from vllm import LLM

    engine = {
        "max_model_len": arguments.longest + arguments.max_tokens + 64,
        "max_num_seqs": arguments.max_num_seqs,
        "speculative_config": speculative,
        "disable_log_stats": False,
        "max_logprobs": 20,
        **arguments.engine,
    }
    return LLM(arguments.model, **engine)


def free_bytes(worker: Any) -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def make_prompts(arguments: argparse.Namespace, llm: Any, count: int) -> list[list[int]]:
    """Lengths spread evenly over their orders of magnitude."""
    numbers = random.Random(1)
    tokenizer = None if arguments.engine.get("skip_tokenizer_init") else llm.get_tokenizer()
    vocab_size = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    texts = prompt_tokens(arguments.longest, 24, vocab_size, tokenizer, arguments.documents)
    prompts = []
    for _ in range(count):
        length = int(arguments.shortest * (arguments.longest / arguments.shortest) ** numbers.random())
        text = numbers.choice(texts)
        start = numbers.randrange(len(text) - length + 1)
        prompts.append(text[start : start + length])
    return prompts


def serve(arguments: argparse.Namespace) -> None:
    """Vegas's part: requests come and go; what was answered, and what the device's memory did."""
    from vllm import SamplingParams

    llm = make_engine(arguments, {"method": "vegas", **arguments.options})
    engine, numbers = llm.llm_engine, random.Random(0)
    prompts = make_prompts(arguments, llm, int(arguments.seconds * arguments.rate * 2))
    arrivals, now = [], 0.0
    while now < arguments.seconds and len(arrivals) < len(prompts):
        now += numbers.expovariate(arguments.rate)
        arrivals.append(now)
    lengths = [numbers.randrange(8, arguments.max_tokens + 1) for _ in arrivals]
    aborted = {i: numbers.randrange(1, lengths[i]) for i in range(len(arrivals)) if numbers.random() < 0.1}
    begin, sent, answers, memory = time.perf_counter(), 0, {}, []
    while sent < len(arrivals) or engine.has_unfinished_requests():
        elapsed = time.perf_counter() - begin
        while sent < len(arrivals) and arrivals[sent] <= elapsed:
            params = SamplingParams(temperature=0, max_tokens=lengths[sent], ignore_eos=True, detokenize=False)
            engine.add_request(str(sent), {"prompt_token_ids": prompts[sent]}, params)
            sent += 1
        if not engine.has_unfinished_requests():
            time.sleep(0.005)
            continue
        for output in engine.step():
            tokens = list(output.outputs[0].token_ids)
            number = int(output.request_id)
            if output.finished and number not in aborted:
                answers[number] = tokens
            elif len(tokens) >= aborted.get(number, 10**9) and not output.finished:
                engine.abort_request([output.request_id])
        if len(memory) == 0 and elapsed > arguments.seconds / 3:
            memory.append(llm.collective_rpc(free_bytes)[0])
    memory.append(llm.collective_rpc(free_bytes)[0])
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    drafts, accepted = (values.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "accepted_tokens"))
    result = {
        "seconds": time.perf_counter() - begin,
        "sent": sent,
        "finished": len(answers),
        "aborted": len(aborted),
        "accepted_per_iteration": accepted / drafts if drafts else None,
        "drafts": drafts,
        "preemptions": values.get("vllm:num_preemptions", 0),
        "free_bytes_early_and_late": memory,
        "requests": [{"prompt": prompts[number], "tokens": tokens} for number, tokens in sorted(answers.items())],
    }
    write(arguments.folder / "vegas.json", result)


def answer(arguments: argparse.Namespace) -> None:
    """Stock's part: the same requests, as one batch and a few at a time, and the gap wherever tokens differ."""
    from vllm import SamplingParams

    requests = json.loads((arguments.folder / "vegas.json").read_text())["requests"]
    llm = make_engine(arguments, None)

    def generate(some: list[dict[str, Any]]) -> list[list[int]]:
        params = [
            SamplingParams(temperature=0, max_tokens=len(each["tokens"]), ignore_eos=True, detokenize=False)
            for each in some
        ]
        outputs = llm.generate([{"prompt_token_ids": each["prompt"]} for each in some], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    batch = generate(requests)
    few: list[list[int]] = []
    for start in range(0, len(requests), 4):
        few += generate(requests[start : start + 4])
    gaps = [judge(llm, each["prompt"], each["tokens"], stock) for each, stock in zip(requests, batch, strict=True)]
    own = [a != b for a, b in zip(batch, few, strict=True)]
    differing = [gap for gap in gaps if gap is not None]
    result = {
        "requests": len(requests),
        "differing_from_stock": len(differing),
        "stock_differing_from_itself": sum(own),
        "gaps": differing,
        "faults": [gap for gap in differing if gap > TIE],
    }
    write(arguments.folder / "stock.json", result)


def judge(llm: Any, prompt: list[int], ours: list[int], stock: list[int]) -> float | None:
    """How far apart stock finds the two tokens where the answers first differ; None if they are the same."""
    from vllm import SamplingParams

    place = next((i for i, (a, b) in enumerate(zip(ours, stock, strict=True)) if a != b), None)
    if place is None:
        return None
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True, detokenize=False)
    [output] = llm.generate([{"prompt_token_ids": prompt + stock[:place]}], params, use_tqdm=False)
    found = {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}
    if ours[place] not in found or stock[place] not in found:
        return NOT_AMONG_THE_BEST
    return abs(found[ours[place]] - found[stock[place]])


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
