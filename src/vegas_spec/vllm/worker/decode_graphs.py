"""Full CUDA graphs of the target for every number of rows per request that steps may have.

vLLM looks for the graph of a decoding batch, of ``n`` requests with ``q`` rows each, among those of the smallest
captured token count of at least ``n * q``. Where several ``q`` are in use, that count is often one of another ``q`` (17
requests with 1 row meet the graph of 3 requests with 7), and the step runs without a full graph. Here each ``q`` has
the same numbers of requests, ``1, 2, 4, 8, 16, 24, ...``, and a batch finds the next one of its own ``q``.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

from vegas_spec.vllm.start import options


def request_counts(most: int) -> list[int]:
    """Batch sizes that get graphs: 1, 2, 4, multiples of 8 up to 256, then of 16, and the most of all."""
    counts = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    return [*(count for count in counts if count < most), most]


def uniform_batches(rows: Sequence[int], max_requests: int, max_tokens: int) -> list[tuple[int, int]]:
    """Batches ``(requests, rows per request)`` that get a full graph, none of them of more than so many tokens."""
    return [(n, q) for q in rows if q <= max_tokens for n in request_counts(min(max_requests, max_tokens // q))]


def init_candidates(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a batch find the graph of its own number of rows per request."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # The draft's own graphs have one row per request, in all lengths of the loop.
        if options.is_vegas(self.vllm_config) and self.decode_query_len > 1:
            rows = [length + 1 for length in options.draft_lengths(self.vllm_config)]
            if len(rows) > 1 and self.cudagraph_mode.separate_routine():
                arrange(self, rows)

    return wrapped


def arrange(manager: Any, rows: Sequence[int]) -> None:
    """Replace the full graphs that a `CudaGraphManager` captures, and the lists that it looks them up in."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

    if CUDAGraphMode.FULL not in manager._capture_descs:
        return
    largest = manager.compilation_config.max_cudagraph_capture_size
    graphs = [
        BatchExecutionDescriptor(
            cg_mode=CUDAGraphMode.FULL, num_tokens=requests * each, num_reqs=requests, uniform_token_count=each
        )
        for requests, each in uniform_batches(rows, manager.max_num_reqs, largest)
    ]
    # vLLM captures the largest first, so that the smaller ones fit into the memory of those.
    manager._capture_descs[CUDAGraphMode.FULL] = sorted(graphs, key=lambda graph: graph.num_tokens, reverse=True)
    by_rows = {each: [graph for graph in graphs if graph.uniform_token_count == each] for each in rows}
    for tokens, adapters in [*manager._candidates, *((tokens, 0) for tokens in range(largest + 1))]:
        found = []
        for own in by_rows.values():
            place = bisect.bisect_left(own, tokens, key=lambda graph: graph.num_tokens)
            found += own[place : place + 1]
        before = manager._candidates.get((tokens, adapters), [])
        rest = [graph for graph in before if graph.cg_mode != CUDAGraphMode.FULL]
        manager._candidates[tokens, adapters] = [*found, *rest]
