"""Where a worker's time goes, on the device and on the host: functions that run on the worker.

In a module of their own, since those of a program's main one mean nothing to another process.
"""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

import torch


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


PROFILERS = {"kernels": (start_profile, stop_profile), "host": (start_host_profile, stop_host_profile)}
