"""All figures of one case."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from vegas_bench.measure.kernels.cases import QUERY_LEN, TAIL, Case
from vegas_bench.measure.kernels.layer import Layer
from vegas_bench.measure.kernels.stock import Stock, has_flash_attention
from vegas_bench.measure.kernels.timing import Milliseconds
from vegas_bench.results.results import KernelRow

SHARES = (0.05, 0.07)
"""Of the cache, that a draft step reads: the default, and a larger one. Chosen by hand."""

SCORES = ("weight", "logit")
LISTS = 6
"""Lists of entries that a sparse kernel reads in turn, so that no cache serves it. Chosen by hand."""


def measure_case(case: Case, bandwidth: float, device: torch.device, milliseconds: Milliseconds) -> KernelRow:
    """Time the kernels at one shape.

    Parameters
    ----------
    case : Case
        The shape.
    bandwidth : float
        Bytes per second, for the floors.
    device : torch.device
        Where; FlashAttention 3 is measured beside if vLLM has it for this device.
    milliseconds : callable
        See `vegas_bench.measure.kernels.timing.graph_milliseconds`.

    Returns
    -------
    KernelRow
        ``floor``; ``fa3``; ``verify_*`` (without scores, or with either), ``select_*``, and both; ``torch_topk`` of as
        many scores; ``prepare``; for each share ``sparse_floor``, ``sparse_kv_head``, ``sparse_layer``, ``fa3_page_1``.

    """
    layer = Layer(case, device)
    budget = case.budget(SHARES[0])
    counts = torch.full((case.batch,), budget, dtype=torch.int32, device=device)
    slots = torch.zeros(case.batch, case.kv_heads, budget + TAIL, dtype=torch.int32, device=device)
    times = {"floor": case.batch * case.context * case.token_bytes / bandwidth * 1e3}
    times["verify_plain"] = milliseconds([partial(layer.verify, None)])
    for score in SCORES:
        verify, select = partial(layer.verify, score), partial(layer.select, counts, slots, score)
        times[f"verify_{score}"] = milliseconds([verify])
        times[f"select_{score}"] = milliseconds([select])
        times[f"verify_select_{score}"] = milliseconds([_both(verify, select)])
    scores = torch.rand(case.batch * case.kv_heads, case.context, device=device)
    times["torch_topk"] = milliseconds([lambda: torch.topk(scores, budget)])
    times["prepare"] = milliseconds([lambda: layer.plan.prepare(layer.query_start_loc, layer.seq_lens)])
    lists = {}
    for share in SHARES:
        length, name = case.budget(share) + QUERY_LEN - 1, f"{share:.0%}"
        times[f"sparse_floor_{name}"] = case.batch * length * case.token_bytes / bandwidth * 1e3
        for label, groups in (("kv_head", case.kv_heads), ("layer", 1)):
            lists[name], entries = layer.random_lists(share, groups, LISTS)
            times[f"sparse_{label}_{name}"] = milliseconds(
                [partial(layer.sparse, each, entries) for each in lists[name]]
            )
    times["sparse_consecutive_5%"] = milliseconds(_consecutive(layer, counts))
    if device.type == "cuda" and has_flash_attention():
        stock = Stock(layer, milliseconds)
        times["fa3"] = stock.verify()
        for share in SHARES:
            name = f"{share:.0%}"
            times[f"fa3_page_1_{name}"] = stock.sparse(lists[name], case.budget(share) + QUERY_LEN - 1)
    scratch = layer.plan.scratch_bytes()
    per_token = (scratch["levels"] + scratch["histogram"]) / (case.batch * case.context)
    sizes = {**scratch, "scratch_bytes_per_token": per_token, "index_bytes_per_layer": slots.numel() * 4}
    return KernelRow(case=case.name, batch=case.batch, context=case.context, milliseconds=times, bytes=sizes)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def _consecutive(layer: Layer, counts: torch.Tensor) -> list[Callable[[], None]]:
    """Consecutive slots everywhere: what a compact buffer, gathered once per iteration, would read."""
    case = layer.case
    width = case.budget(SHARES[0]) + TAIL
    first = torch.arange(case.batch * case.kv_heads, device=layer.device).view(case.batch, case.kv_heads, 1) * width
    offsets = torch.arange(width, device=layer.device)
    total = case.batch * case.context
    return [
        partial(layer.sparse, ((first + step * 977 + offsets) % total).int().contiguous(), counts)
        for step in range(LISTS)
    ]
