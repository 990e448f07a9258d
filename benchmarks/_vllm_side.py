"""One engine of `benchmarks/vllm_decode.py`: what it measures beside decoding speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams

from vegas_spec.vllm.decode_speed import Side as DecodeSpeed


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

    def profile(self, prompts: Sequence[Sequence[int]], temperature: float) -> list[dict[str, Any]]:
        """Device time by kernel over a short run of a case whose prompts are in the cache already."""
        self.llm.collective_rpc(start_profile)
        self._run(prompts, temperature, 48)
        kernels: list[dict[str, Any]] = self.llm.collective_rpc(stop_profile)[0]
        return kernels

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
