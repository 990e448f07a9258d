"""How long a call takes on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vegas_spec.device_time import now, seconds_between

_GPU = torch.device("cuda")
Milliseconds = Callable[[Sequence[Callable[[], object]]], float]
"""Median milliseconds of one of several calls, which take turns."""


def graph_milliseconds(calls: Sequence[Callable[[], object]], repeats: int = 12) -> float:
    """Median milliseconds of a call; several calls take turns within one CUDA graph, so that no cache serves them."""
    torch.cuda.synchronize()
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    count = max(8, len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            calls[index % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(repeats):
        start = now(_GPU)
        graph.replay()
        times.append(1e3 * seconds_between(start, now(_GPU)) / count)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of adding 1 to 2 GiB."""
    source = torch.zeros(1 << 30, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 2 / graph_milliseconds([lambda: torch.add(source, 1, out=target)]) * 1e3
