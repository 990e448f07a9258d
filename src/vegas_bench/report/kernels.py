"""How near the kernels of one layer come to the time that memory bandwidth alone would take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, SKY, SLATE, Colour
from vegas_bench.report.parts import TIMES, Block, Plot, legend_above, panel
from vegas_bench.results.results import KernelRow, Result

_COLOURS: dict[str, Colour] = {
    "fa3": SLATE,
    "fa3_page_1": SLATE,
    "verify_weight": BLUE,
    "verify_select_weight": GREEN,
    "sparse_kv_head": BLUE,
    "sparse_layer": GREEN,
}
_FREE = (ORANGE, GREEN, PURPLE, SKY, BLUE, SLATE)
_TEXT = {
    "fa3": "FlashAttention 3",
    "fa3_page_1": "FlashAttention 3, page size 1",
    "verify_weight": "verify with scores",
    "verify_select_weight": "verify, scores and select",
    "sparse_kv_head": "sparse, set per KV head",
    "sparse_layer": "sparse, set per layer",
}


def kernels_block(result: Result, prefix: str, heading: str, conditions: str) -> Block:
    """Everything about one kernels result."""
    rows: list[KernelRow] = result.rows
    plots = []
    names = _first_present(rows, ("fa3", "verify_weight", "verify_select_weight"))
    if names and any("floor" in row.milliseconds for row in rows):
        caption = "Verification of one layer: the bandwidth floor's time over the kernel's; 100 % is the floor itself."
        plots.append(floor_plot(rows, {name: name for name in names}, "floor", f"{prefix}-verify", caption))
    for share in _shares(rows):
        kernels = _first_present(rows, [f"{name}_{share}" for name in ("fa3_page_1", "sparse_kv_head", "sparse_layer")])
        if kernels:
            caption = f"A draft step of one layer over {share.replace('%', ' %')} of the cache, against its own floor."
            bars = {kernel: kernel.removesuffix(f"_{share}") for kernel in kernels}
            name = f"{prefix}-sparse-{share.rstrip('%').replace('.', '-')}"
            plots.append(floor_plot(rows, bars, f"sparse_floor_{share}", name, caption))
    return Block(heading, conditions, plots)


def kernels_headlines(result: Result, conditions: str) -> list[Headline]:
    """None: what a kernel takes is no headline of the method."""
    return []


def floor_plot(rows: Sequence[KernelRow], kernels: dict[str, str], floor: str, name: str, caption: str) -> Plot:
    """One group of bars per case, the floor's time over each kernel's."""
    rows = [row for row in rows if floor in row.milliseconds]
    figure, axes = panel(1.3 + 0.17 * len(rows) * (len(kernels) + 0.8))
    place, ticks = 0.0, []
    for row in reversed(rows):
        first = place
        for index, (kernel, text) in reversed(list(enumerate(kernels.items()))):
            if row.milliseconds.get(kernel):
                share = 100 * row.milliseconds[floor] / row.milliseconds[kernel]
                colour = _COLOURS.get(text, _FREE[index % len(_FREE)])
                label = _TEXT.get(text, text) if row is rows[0] else None
                axes.barh(place, share, height=0.82, color=colour.light, label=label)
                axes.annotate(
                    f"{share:.0f}",
                    (share, place),
                    xytext=(-4, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize=7.5,
                    color=PAPER.light,
                )
            place += 1
        ticks.append((first + place - 1) / 2)
        place += 0.8
    axes.axvline(100, color=MUTED.light, linewidth=1, linestyle=(0, (3, 2)))
    axes.set_yticks(ticks, [row.case.replace(" x ", f" {TIMES} ") for row in reversed(rows)])
    axes.tick_params(axis="y", labelcolor=INK.light, labelsize=8)
    axes.set_ylim(-0.8, place - 0.9)
    axes.set_xlim(0, 108)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("share of the bandwidth floor (%)")
    legend_above(axes, [_TEXT.get(text, text) for text in kernels.values()])
    return Plot(name, figure, caption)


def _first_present(rows: Sequence[KernelRow], names: Iterable[str]) -> list[str]:
    return [name for name in names if any(name in row.milliseconds for row in rows)]


def _shares(rows: Sequence[KernelRow]) -> list[str]:
    found = dict.fromkeys(
        match[1] for row in rows for name in row.milliseconds if (match := re.fullmatch(r"sparse_floor_(.+)", name))
    )
    return list(found)
