"""Where a worker's time goes, on the device and on the host: functions that run on the worker."""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

import torch
from torch.profiler import ProfilerActivity

_SHOWN = 50
"""Of kernels and of functions, the most expensive ones. Chosen by hand."""


def start_kernels(worker: Any) -> None:
    """Begin to time what runs on the device."""
    on_gpu = torch.cuda.is_available()
    worker.vegas_profile = torch.profiler.profile(
        activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    )
    worker.vegas_profile.start()


def stop_kernels(worker: Any) -> list[dict[str, Any]]:
    """Milliseconds by kernel (on a CPU by torch's operator), the most expensive first."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    worker.vegas_profile.stop()
    found = [
        {
            "kernel": each.key[:120],
            "calls": each.count,
            "milliseconds": (each.device_time_total if on_gpu else each.self_cpu_time_total) / 1e3,
        }
        for each in worker.vegas_profile.key_averages()
    ]
    return sorted(found, key=lambda kernel: -kernel["milliseconds"])[:_SHOWN]


def start_host(worker: Any) -> None:
    """Begin to time functions on the thread that the call runs on; with one GPU it is that of the engine's loop."""
    worker.vegas_host_profile = cProfile.Profile()
    worker.vegas_host_profile.enable()


def stop_host(worker: Any) -> list[dict[str, Any]]:
    """Milliseconds of the host by function, its own and with what it calls, the most expensive first."""
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
        for (file, line, name), (_, calls, own, whole, _) in ranked[:_SHOWN]
    ]


PROFILERS = {"kernels": (start_kernels, stop_kernels), "host": (start_host, stop_host)}
"""How each profile begins and ends."""
