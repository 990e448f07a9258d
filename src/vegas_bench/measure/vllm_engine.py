"""One vLLM engine in a process of its own, which measures what it is told: ``python -m ...vllm_engine JOB``.

JOB is a JSON file: ``engine``, arguments of `vllm.LLM`; ``tasks``, each with a ``key``, what to ``measure``, and the
arguments of that method of `Engine`; ``out``, a file that gets a JSON line when the engine has started, and one for
every task as soon as it is measured. `vegas_bench.measure.vllm_side` writes such jobs.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm import LLM, SamplingParams

from vegas_bench.measure import iteration_times, soak_engine
from vegas_bench.measure.decoding import Decoding, steady_speed
from vegas_bench.measure.job_process import job_of, wait_for_turn
from vegas_bench.measure.worker_profile import PROFILERS
from vegas_spec.vllm.scheduler.cost import estimate_cost

MARGIN = 3
"""Steps left out after the last request's first token, which the prompts' last chunks may share. Chosen by hand."""

WARM_UP_TOKENS, PROFILED_TOKENS = 64, 48
"""Tokens of each output while an engine warms up, and while it is profiled: enough that all kinds of steps occur.
Chosen by hand."""


class Engine:
    """An engine and its measurements; what they give is fit for JSON."""

    def __init__(self, arguments: dict[str, Any], tell: Callable[..., None] = lambda **fields: None) -> None:
        begin = time.perf_counter()
        self.llm = LLM(**{**arguments, "disable_log_stats": False})
        self.seconds_to_start = time.perf_counter() - begin
        self.tell = tell
        self.llm.collective_rpc(iteration_times.install)
        self._number = 0

    def about(self) -> dict[str, Any]:
        """Seconds to start, blocks of the KV cache, and the bytes that decoding reads.

        Those are a rank's weights, once per step, and K and V per token in layers with full attention.
        """
        vllm_config = self.llm.llm_engine.vllm_config
        cost = estimate_cost(vllm_config)
        return {
            "seconds_to_start": self.seconds_to_start,
            "kv_blocks": vllm_config.cache_config.num_gpu_blocks,
            "size": {"weight_bytes": cost.weights, "kv_bytes_per_token": cost.per_token},
        }

    def decode(
        self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int, repeats: int, profile: bool
    ) -> dict[str, Any]:
        """Measure one batch; the fields of `Decoding`, and with `profile` where time went in two short runs after it.

        Decode tokens/s are those of the steps in which all requests decode: from the last request's first token to the
        first request's end. A first short run warms up and leaves the prompts in the prefix cache.
        """
        self._run(prompts, temperature, min(max_tokens, WARM_UP_TOKENS))
        self.llm.collective_rpc(iteration_times.read)
        before = self._counters()
        speeds = [self._run(prompts, temperature, max_tokens) for _ in range(repeats)]
        known = [speed for speed in speeds if speed is not None]
        if len(known) < len(speeds):
            raise SystemExit(f"outputs of {max_tokens} tokens are too short to time; raise --max-tokens")
        now = self._counters()
        drafts = now["drafts"] - before["drafts"]
        by_position = [a - b for a, b in itertools.zip_longest(now["by_position"], before["by_position"], fillvalue=0)]
        measured = Decoding(
            tokens_per_second=known,
            accepted_per_iteration=(now["accepted"] - before["accepted"]) / drafts if drafts else None,
            accepted_per_position=[count / drafts for count in by_position] if drafts else None,
            milliseconds=self.llm.collective_rpc(iteration_times.read)[0],
        )
        found = {}
        for name, (start, stop) in PROFILERS.items() if profile else ():
            self.llm.collective_rpc(start)
            self._run(prompts, temperature, PROFILED_TOKENS)
            found[name] = self.llm.collective_rpc(stop)[0]
        return {**dataclasses.asdict(measured), "profile": found}

    def first_token(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Seconds to the first token of each prompt alone, none of it in the prefix cache; the first one warms up."""
        seconds = []
        for prompt in prompts:
            for _ in range(10):  # the blocks of the last prompt may be free a little later than it is answered
                if self.llm.reset_prefix_cache():
                    break
                time.sleep(0.1)
            else:
                raise SystemExit("the prefix cache cannot be emptied; leave --first-token out")
            begin = time.perf_counter()
            self._run([prompt], 0.0, 1)
            seconds.append(time.perf_counter() - begin)
        return seconds[1:]

    def serve(self, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """See `soak_engine.serve`."""
        return soak_engine.serve(self.llm, requests, self.tell)

    def judge(self, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """See `soak_engine.judge`."""
        return soak_engine.judge(self.llm, answers)

    def _run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> float | None:
        """Generate for all prompts at once; tokens per second while all of them decode, None for too few steps."""
        engine: Any = self.llm.llm_engine
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        done: dict[str, int] = {}
        for prompt in prompts:
            self._number += 1
            done[str(self._number)] = 0
            engine.add_request(str(self._number), {"prompt_token_ids": list(prompt)}, params)
        marks: list[tuple[float, int]] = []
        ended = False
        while engine.has_unfinished_requests():
            for output in engine.step():
                done[output.request_id] = len(output.outputs[0].token_ids)
                ended = ended or output.finished
            if all(done.values()) and not ended:
                marks.append((time.perf_counter(), sum(done.values())))
        marks = marks[MARGIN:]
        return steady_speed(marks) if len(marks) > 1 else None

    def _counters(self) -> dict[str, Any]:
        found = {metric.name: metric for metric in self.llm.get_metrics()}

        def value(name: str, field: str, absent: Any) -> Any:
            return getattr(found.get(f"vllm:spec_decode_{name}"), field, absent)

        return {
            "drafts": value("num_drafts", "value", 0),
            "accepted": value("num_accepted_tokens", "value", 0),
            "by_position": value("num_accepted_tokens_per_pos", "values", []),
        }


def main(path: str) -> None:
    """Run a job."""
    with job_of(path) as (job, answer):
        engine = Engine(job["engine"], answer)
        answer(started=engine.about())
        wait_for_turn()
        for task in job["tasks"]:
            answer(key=task.pop("key"), measured=getattr(engine, task.pop("measure"))(**task))


if __name__ == "__main__":
    main(sys.argv[1])
