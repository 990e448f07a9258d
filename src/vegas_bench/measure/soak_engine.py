"""A soak's part in the engine's process: to serve what comes, and to judge by stock vLLM what was answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from vllm import LLM, SamplingParams

from vegas_bench.measure.soak import LOGPROBS
from vegas_spec.ties import tie_gap

FEW = 4
"""Requests of a small batch. Chosen by hand."""

NOT_AMONG_THE_BEST = 1000.0
"""Stands for the gap where stock does not have both tokens among its best: more than any tie."""

_TELL_SECONDS = 1.0  # between two lines of progress; chosen by hand


def serve(llm: LLM, requests: Sequence[Mapping[str, Any]], tell: Callable[..., None]) -> dict[str, Any]:
    """Serve requests as they come, the fields of `vegas_bench.measure.soak.Request`, and abort some of them.

    Returns
    -------
    dict
        ``answers``, those of the finished ones with their prompts; counts; ``free_bytes`` of the device a third of the
        way through and at the end.

    """
    engine: Any = llm.llm_engine
    begin, told, sent, aborted = time.perf_counter(), 0.0, 0, 0
    answers: dict[int, list[int]] = {}
    memory: list[int | None] = []
    while sent < len(requests) or engine.has_unfinished_requests():
        elapsed = time.perf_counter() - begin
        while sent < len(requests) and requests[sent]["at"] <= elapsed:
            params = _greedy(requests[sent]["max_tokens"])
            engine.add_request(str(sent), {"prompt_token_ids": requests[sent]["prompt"]}, params)
            sent += 1
        if elapsed - told > _TELL_SECONDS:
            told = elapsed
            tell(served=sent)
        if not engine.has_unfinished_requests():
            time.sleep(0.005)
            continue
        for output in engine.step():
            tokens, number = list(output.outputs[0].token_ids), int(output.request_id)
            patience = requests[number]["aborted_after"]
            if output.finished:
                answers[number] = tokens
            elif patience is not None and len(tokens) >= patience:
                engine.abort_request([output.request_id])
                aborted += 1
        if not memory and elapsed > requests[-1]["at"] / 3:
            memory += llm.collective_rpc(free_bytes)
    memory += llm.collective_rpc(free_bytes)
    counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    drafts, accepted = (counted.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "accepted_tokens"))
    return {
        "seconds": time.perf_counter() - begin,
        "sent": sent,
        "finished": len(answers),
        "aborted": aborted,
        "drafts": drafts,
        "accepted_per_iteration": accepted / drafts if drafts else None,
        "preemptions": counted.get("vllm:num_preemptions", 0),
        "free_bytes": [each for each in memory if each is not None],
        "answers": [{"prompt": requests[number]["prompt"], "tokens": answers[number]} for number in sorted(answers)],
    }


def judge(llm: LLM, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Answer the same prompts as one batch and a few at a time, and measure the gap wherever tokens differ.

    Returns
    -------
    dict
        ``gaps``, by how much stock prefers its token where a request's tokens first differ; ``tie``, the largest gap
        that rounding explains; how many requests stock answers otherwise by itself in small batches.

    """
    batch = _complete(llm, answers)
    few = [tokens for at in range(0, len(answers), FEW) for tokens in _complete(llm, answers[at : at + FEW])]
    gaps = [_gap(llm, each["prompt"], each["tokens"], stock) for each, stock in zip(answers, batch, strict=True)]
    dtype = llm.llm_engine.vllm_config.model_config.dtype
    return {
        "requests": len(answers),
        "gaps": [gap for gap in gaps if gap is not None],
        "tie": tie_gap(dtype),
        "stock_differing_from_itself": sum(a != b for a, b in zip(batch, few, strict=True)),
    }


def _complete(llm: LLM, some: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    prompts = [{"prompt_token_ids": each["prompt"]} for each in some]
    params = [_greedy(len(each["tokens"])) for each in some]
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params, use_tqdm=False)]


def _gap(llm: LLM, prompt: list[int], ours: list[int], stock: list[int]) -> float | None:
    """How far apart stock finds the two tokens where answers first differ; None if they are the same.

    A difference of log-probabilities is that of the logits.
    """
    place = next((at for at, (a, b) in enumerate(zip(ours, stock, strict=True)) if a != b), None)
    if place is None:
        return None
    params = _greedy(1, logprobs=LOGPROBS)
    [output] = llm.generate([{"prompt_token_ids": prompt + stock[:place]}], params, use_tqdm=False)
    found: dict[int, float] = {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}
    if ours[place] not in found or stock[place] not in found:
        return NOT_AMONG_THE_BEST
    return abs(found[ours[place]] - found[stock[place]])


def _greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, **options)


def free_bytes(worker: Any) -> int | None:
    """On a worker: what is free of its device's memory; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])
