"""One side of `benchmarks/vllm_decode.py`, in a process of its own: ``python benchmarks/_vllm_side.py JOB``.

It runs a job as `vegas_bench.measure.vllm_engine` does, and measures more than decoding speed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _vllm_profile
from _vllm_prompts import prompt_tokens
from vllm import SamplingParams

from vegas_bench.measure.vllm_engine import Side as DecodeSpeed
from vegas_bench.measure.vllm_engine import job_of


class Side(DecodeSpeed):
    """An engine and its measurements."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        begin = time.perf_counter()
        super().__init__(arguments)
        self.seconds_to_start = time.perf_counter() - begin

    @property
    def kv_blocks(self) -> int | None:
        """Blocks of the KV cache."""
        blocks: int | None = self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
        return blocks

    def profile(self, prompts: Sequence[Sequence[int]], temperature: float) -> dict[str, list[dict[str, Any]]]:
        """Time by kernel, and of the host by function, in two short runs of a case whose prompts are cached already."""
        found = {}
        for name, (start, stop) in _vllm_profile.PROFILERS.items():
            self.llm.collective_rpc(start)
            self._run(prompts, temperature, 48)
            found[name] = self.llm.collective_rpc(stop)[0]
        return found

    def seconds_to_first_token(self, prompts: Sequence[list[int]]) -> list[float]:
        """Of one request at a time, each a prompt not seen before."""
        engine: Any = self.llm.llm_engine
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        seconds = []
        for number, prompt in enumerate(prompts):
            begin = time.perf_counter()
            engine.add_request(f"first-{len(prompt)}-{number}", {"prompt_token_ids": prompt}, params)
            while engine.has_unfinished_requests():
                engine.step()
            seconds.append(time.perf_counter() - begin)
        return seconds


def main(path: str) -> None:
    """Run a job; what is measured is answered at once."""
    with job_of(path) as (job, answer):
        side = Side(job["engine"])
        answer(size=side.size, seconds_to_start=side.seconds_to_start, kv_blocks=side.kv_blocks)
        wait_for(Path(job["turn"]))
        tokenizer = side.llm.get_tokenizer() if job["prompts"] == "text" else None
        vocab_size = side.llm.llm_engine.vllm_config.model_config.get_vocab_size()
        documents = Path(job["documents"]) if job["documents"] else None

        def prompts(context: int, count: int) -> list[list[int]]:
            return prompt_tokens(context, count, vocab_size, tokenizer, documents)

        if lengths := job["first_token"]:
            seconds = {length: side.seconds_to_first_token(prompts(length, 5)[1:]) for length in lengths}
            answer(seconds_to_first_token=seconds)
        for case in job["cases"]:
            tokens, temperature = prompts(case["context"], case["batch"]), case["temperature"]
            answer(case=case, measured=side.case(tokens, temperature, job["max_tokens"], job["repeats"]))
            if job["profile"]:
                answer(case=case, profile=side.profile(tokens, temperature))


def wait_for(turn: Path) -> None:
    """Wait until that file is there: engines that start together measure one after the other."""
    parent = os.getppid()
    while not turn.exists():
        if os.getppid() != parent:
            sys.exit("nobody waits for this side any more")
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
