"""Decoding speed of one vLLM engine, in a process of its own: ``python -m vegas_bench.measure.vllm_engine JOB``.

JOB is a JSON file: ``engine``, arguments of `vllm.LLM`; ``cases``, each with ``key``, ``prompts`` (token ids) and
``temperature``; ``max_tokens``; ``repeats``; ``out``, a file that gets one JSON line when the engine has started and
one for every case as soon as it is measured. `vegas_bench.measure.vllm_side` writes such jobs.

Decode tokens/s are those of the steps in which all requests decode: from the last request's first token to the first
request's end. A first short run warms up and leaves the prompts in the prefix cache.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from vegas_bench.measure import iteration_times
from vegas_spec.vllm.scheduler.cost import estimate_cost

MARGIN = 3
"""Steps left out after the last request's first token, which the prompts' last chunks may share."""

WARM_UP_TOKENS = 64


def model_size(vllm_config: Any) -> dict[str, float]:
    """Bytes of a rank's weights that a step reads, and of K and V per token in layers with full attention."""
    cost = estimate_cost(vllm_config)
    return {"weight_bytes": cost.weights, "kv_bytes_per_token": cost.per_token}


class Side:
    """An engine and its measurements."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.llm = LLM(**{**arguments, "disable_log_stats": False})
        self.llm.collective_rpc(iteration_times.install)
        self.size = model_size(self.llm.llm_engine.vllm_config)
        self._number = 0

    def case(
        self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """Measure one batch: tokens per second of each repeat, acceptance, milliseconds by phase."""
        self._run(prompts, temperature, min(max_tokens, WARM_UP_TOKENS))
        self.llm.collective_rpc(iteration_times.read)
        before = self._counters()
        speeds = [self._run(prompts, temperature, max_tokens) for _ in range(repeats)]
        if None in speeds:
            raise SystemExit(f"outputs of {max_tokens} tokens are too short to time; raise --max-tokens")
        now = self._counters()
        drafts = now["drafts"] - before["drafts"]
        by_position = [a - b for a, b in itertools.zip_longest(now["by_position"], before["by_position"], fillvalue=0)]
        return {
            "tokens_per_second": speeds,
            "accepted_per_iteration": (now["accepted"] - before["accepted"]) / drafts if drafts else None,
            "accepted_per_position": [count / drafts for count in by_position] if drafts else None,
            "milliseconds": self.llm.collective_rpc(iteration_times.read)[0],
        }

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
        if len(marks) < 2:
            return None
        (begin, before), (end, after) = marks[0], marks[-1]
        return (after - before) / (end - begin)

    def _counters(self) -> dict[str, Any]:
        found = {metric.name: metric for metric in self.llm.get_metrics()}

        def value(name: str, field: str, absent: Any) -> Any:
            return getattr(found.get(f"vllm:spec_decode_{name}"), field, absent)

        return {
            "drafts": value("num_drafts", "value", 0),
            "accepted": value("num_accepted_tokens", "value", 0),
            "by_position": value("num_accepted_tokens_per_pos", "values", []),
        }


@contextlib.contextmanager
def job_of(path: str) -> Iterator[tuple[dict[str, Any], Callable[..., None]]]:
    """Read a job, and give with it what answers: the named arguments of each call become a line of ``out``."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    with Path(job["out"]).open("a", encoding="utf-8") as out:

        def answer(**fields: Any) -> None:
            out.write(json.dumps(fields) + "\n")
            out.flush()

        yield job, answer


def main(path: str) -> None:
    """Run a job."""
    with job_of(path) as (job, answer):
        side = Side(job["engine"])
        answer(size=side.size)
        for case in job["cases"]:
            measured = side.case(case["prompts"], case["temperature"], job["max_tokens"], job["repeats"])
            answer(key=case["key"], measured=measured)


if __name__ == "__main__":
    main(sys.argv[1])
