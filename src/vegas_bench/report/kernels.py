"""How near the kernels of one layer come to the time that memory bandwidth alone would take."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vegas_bench.report.palette import BLUE, GREEN, MUTED, PAPER, SLATE, Colour
from vegas_bench.report.parts import TIMES, Block, Chapter, Plot, label_row, lay_rows, legend_above, name_rows, panel
from vegas_bench.results.results import KernelRow, Result

_KERNELS: dict[str, tuple[str, Colour]] = {
    "fa3": ("FlashAttention 3", SLATE),
    "verify_weight": ("verify with scores", BLUE),
    "verify_select_weight": ("verify, scores and select", GREEN),
    "fa3_page_1": ("FlashAttention 3, page size 1", SLATE),
    "sparse_kv_head": ("sparse, set per KV head", BLUE),
    "sparse_layer": ("sparse, set per layer", GREEN),
}


def kernels_block(result: Result, prefix: str) -> Block:
    """Everything about one kernels result."""
    rows: list[KernelRow] = result.rows
    caption = "Verification of one layer: the bandwidth floor's time over the kernel's; 100 % is the floor itself."
    plots = floor_plots(rows, "floor", "", f"{prefix}-verify", caption)
    found = (re.fullmatch(r"sparse_floor_(.+)", name) for row in rows for name in row.milliseconds)
    for share in dict.fromkeys(match[1] for match in found if match):
        caption = f"A draft step of one layer over {share.replace('%', ' %')} of the cache, against its own floor."
        name = f"{prefix}-sparse-{share.rstrip('%').replace('.', '-')}"
        plots += floor_plots(rows, f"sparse_floor_{share}", f"_{share}", name, caption)
    return Block(plots)


def floor_plots(rows: Sequence[KernelRow], floor: str, suffix: str, name: str, caption: str) -> list[Plot]:
    """One group of bars per case, the floor's time over that of each kernel whose name has this suffix."""
    rows = [row for row in rows if floor in row.milliseconds]
    kernels = [kernel for kernel in _KERNELS if any(f"{kernel}{suffix}" in row.milliseconds for row in rows)]
    if not kernels:
        return []
    figure, axes = panel(1.3 + 0.17 * len(rows) * (len(kernels) + 0.8))
    places = lay_rows([len(kernels)] * len(rows), gap=0.8)
    for own, row in zip(places, rows, strict=True):
        for place, kernel in zip(own, kernels, strict=True):
            if time := row.milliseconds.get(f"{kernel}{suffix}"):
                share, (text, colour) = 100 * row.milliseconds[floor] / time, _KERNELS[kernel]
                axes.barh(place, share, height=0.82, color=colour.light, label=text)
                label_row(axes, share, place, f"{share:.0f}", -4, ha="right", fontsize=7.5, color=PAPER.light)
    axes.axvline(100, color=MUTED.light, linewidth=1, linestyle=(0, (3, 2)))
    name_rows(axes, places, [row.case.replace(" x ", f" {TIMES} ") for row in rows], fontsize=8)
    axes.set_xlim(0, 108)
    axes.set_xlabel("share of the bandwidth floor (%)")
    legend_above(axes, (text for text, _ in _KERNELS.values()))
    return [Plot(name, figure, caption)]


CHAPTER = Chapter("Kernels", "One layer's attention on its own, against what memory bandwidth allows.", kernels_block)
