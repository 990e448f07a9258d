"""One engine of `benchmarks/vllm_decode.py`: started, waited for, measured case by case."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm import LLM, SamplingParams

MARGIN = 3
"""Steps left out after the last request's first token, which the prompts' last chunks may share."""


class Timers:
    """Device time of drafts and of whole iterations, by CUDA events on the worker's stream; nothing waits for them."""

    def __init__(self, worker: Any) -> None:
        self.runner = worker.model_runner
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        speculator = getattr(self.runner, "speculator", None)
        if speculator is None or not torch.cuda.is_available():
            return
        propose = speculator.propose

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            drafts = propose(*args, **kwargs)
            end.record()
            self.events.append((begin, end))
            return drafts

        speculator.propose = timed

    def read(self) -> dict[str, float] | None:
        """Medians in milliseconds since the last reading: an iteration, its draft, and all the rest (verification)."""
        events, self.events = self.events, []
        if len(events) < 10:
            return None
        torch.cuda.synchronize()
        drafts = [begin.elapsed_time(end) for begin, end in events]
        iterations = [before[1].elapsed_time(now[1]) for before, now in itertools.pairwise(events)]
        rest = [iteration - draft for iteration, draft in zip(iterations, drafts[1:], strict=True)]
        named = {"iteration": iterations, "draft": drafts, "verify": rest}
        return {name: statistics.median(values) for name, values in named.items()}


def install_timers(worker: Any) -> None:
    worker.vegas_timers = Timers(worker)


def read_timers(worker: Any) -> dict[str, float] | None:
    times: dict[str, float] | None = worker.vegas_timers.read()
    return times


def start_profile(worker: Any) -> None:
    worker.vegas_profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    worker.vegas_profile.start()


def stop_profile(worker: Any) -> list[dict[str, Any]]:
    """Device time by kernel, the most expensive first."""
    torch.cuda.synchronize()
    worker.vegas_profile.stop()
    kernels = sorted(worker.vegas_profile.key_averages(), key=lambda kernel: -kernel.device_time_total)
    return [
        {"kernel": kernel.key[:120], "calls": kernel.count, "milliseconds": kernel.device_time_total / 1000}
        for kernel in kernels[:40]
    ]


class Side:
    """An engine and its measurements."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        begin = time.perf_counter()
        self.llm = LLM(**arguments, disable_log_stats=False)
        self.seconds_to_start = time.perf_counter() - begin
        self.llm.collective_rpc(install_timers)
        self.number = 0

    @property
    def kv_blocks(self) -> int | None:
        """Blocks of the KV cache."""
        blocks: int | None = self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        return blocks

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> dict[str, Any]:
        """Generate for all prompts at once; tokens per second while all of them decode, and over the whole run."""
        engine = self.llm.llm_engine
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        done: dict[str, int] = {}
        for prompt in prompts:
            self.number += 1
            done[str(self.number)] = 0
            engine.add_request(str(self.number), {"prompt_token_ids": list(prompt)}, params)
        begin = time.perf_counter()
        first = last = None
        marks: list[tuple[float, int]] = []
        finished = False
        while engine.has_unfinished_requests():
            for output in engine.step():
                done[output.request_id] = len(output.outputs[0].token_ids)
                finished = finished or output.finished
            now = time.perf_counter()
            if first is None and any(done.values()):
                first = now - begin
            if last is None and all(done.values()):
                last = now - begin
            if last is not None and not finished:
                marks.append((now, sum(done.values())))
        whole = time.perf_counter() - begin
        marks = marks[MARGIN:]
        result = {"seconds_to_first_token": first, "seconds_to_all_first_tokens": last}
        # While prompts are read in, the first request may end before the last begins.
        if len(marks) > 1:
            (t0, n0), (t1, n1) = marks[0], marks[-1]
            result["tokens_per_second"] = (n1 - n0) / (t1 - t0)
            result["tokens_per_second_with_tail"] = (sum(done.values()) - n0) / (begin + whole - t0)
        return result

    def case(
        self, prompts: Callable[[], list[list[int]]], temperature: float, max_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """Warm up with a short run, which also leaves the prompts in the prefix cache, then measure."""
        tokens = prompts()
        warm = self.run(tokens, temperature, 64)
        self.llm.collective_rpc(read_timers)
        before = self.counters()
        runs = [self.run(tokens, temperature, max_tokens) for _ in range(repeats)]
        times = self.llm.collective_rpc(read_timers)[0]
        drafts, proposed, accepted = (now - then for now, then in zip(self.counters(), before, strict=True))
        rates = [run["tokens_per_second"] for run in runs]
        return {
            "tokens_per_second": {"median": statistics.median(rates), "all": rates},
            "tokens_per_second_with_tail": statistics.median(run["tokens_per_second_with_tail"] for run in runs),
            "accepted_per_iteration": accepted / drafts if drafts else None,
            "acceptance": accepted / proposed if proposed else None,
            "milliseconds": times,
            "seconds_to_read_prompts": warm["seconds_to_all_first_tokens"],
        }

    def profile(self, tokens: list[list[int]], temperature: float) -> list[dict[str, Any]]:
        """Device time by kernel over a short run of a case whose prompts are in the cache already."""
        self.llm.collective_rpc(start_profile)
        self.run(tokens, temperature, 48)
        kernels: list[dict[str, Any]] = self.llm.collective_rpc(stop_profile)[0]
        return kernels

    def seconds_to_first_token(self, prompts: Sequence[list[int]]) -> list[float]:
        """Of one request at a time, each a prompt not seen before."""
        seconds = []
        for prompt in prompts:
            self.number += 1
            params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
            begin = time.perf_counter()
            self.llm.llm_engine.add_request(str(self.number), {"prompt_token_ids": prompt}, params)
            while self.llm.llm_engine.has_unfinished_requests():
                self.llm.llm_engine.step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def counters(self) -> list[float]:
        """Drafts, drafted tokens, accepted tokens, since the engine's start."""
        values = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        return [values.get(f"vllm:spec_decode_{name}", 0) for name in names]
