"""One engine of `benchmarks/vllm_decode.py`: what it measures beside decoding speed."""

from __future__ import annotations

import cProfile
import pstats
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


def start_host_profile(worker: Any) -> None:
    """On the thread that the call runs on, which with one GPU is that of the engine's loop."""
    worker.vegas_host_profile = cProfile.Profile()
    worker.vegas_host_profile.enable()


def stop_host_profile(worker: Any) -> list[dict[str, Any]]:
    """Time of the host by function, its own and with what it calls, the most expensive first."""
    worker.vegas_host_profile.disable()
    found = pstats.Stats(worker.vegas_host_profile).stats  # type: ignore[attr-defined]
    ranked = sorted(found.items(), key=lambda item: -item[1][2])
    return [
        {
            "function": f"{'/'.join(file.split('/')[-3:])}:{line} {name}",
            "calls": calls,
            "milliseconds": own * 1e3,
            "with_callees": whole * 1e3,
        }
        for (file, line, name), (_, calls, own, whole, _) in ranked[:60]
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

    def profile(self, prompts: Sequence[Sequence[int]], temperature: float) -> dict[str, list[dict[str, Any]]]:
        """Time by kernel, and of the host by function, in two short runs of a case whose prompts are cached already."""
        found = {}
        profilers = {"kernels": (start_profile, stop_profile), "host": (start_host_profile, stop_host_profile)}
        for name, (start, stop) in profilers.items():
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
