"""Decoding speed against plain decoding by context and batch, beside what memory alone allows; and by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import INK, MUTED, PAPER, Style, phase_colours, policy_styles
from vegas_bench.report.parts import (
    TIMES,
    Block,
    Chapter,
    Plot,
    Table,
    draw_curve,
    draw_prediction,
    label_row,
    label_row_beside,
    lay_rows,
    legend_above,
    name_rows,
    panel,
    token_ticks,
)
from vegas_bench.results.results import Result, ThroughputRow
from vegas_bench.results.summary import BASELINE, REFERENCE, Shape, Speedup, by_shape, speedups
from vegas_bench.results.wording import count_text, tokens_text

_Shapes = dict[Shape, dict[str, ThroughputRow]]
_Ratios = dict[Shape, dict[str, Speedup]]

BOUND = "memory-bound"
_BOUND_IS = "what reading weights and cache alone would allow, with the drafts that were accepted"


def throughput_block(result: Result, prefix: str) -> Block:
    """Everything about one throughput result."""
    shapes = by_shape(result.rows)
    styles = policy_styles(label for sides in shapes.values() for label in sides)
    ratios = {shape: found for shape, sides in shapes.items() if (found := speedups(sides))}
    plots = speedup_plots(ratios, styles, prefix) + growth_plots(ratios, styles, prefix)
    plots += phase_plots(shapes, prefix) + overhead_plots(shapes, styles, prefix)
    return Block(plots, [speed_table(shapes)], [_imposed_sentence(result), _baseline_sentence(shapes)])


def throughput_headlines(result: Result) -> list[Headline]:
    """The reference's best shape."""
    found = [
        (shape, ratios[REFERENCE])
        for shape, sides in by_shape(result.rows).items()
        if REFERENCE in (ratios := speedups(sides))
    ]
    if not found:
        return []
    shape, best = max(found, key=lambda each: each[1].ratio)
    where = f"{count_text(shape.batch, 'request')} of {tokens_text(shape.context)}"
    return [Headline(f"{best.ratio:.2f}{TIMES}", "decode throughput of plain decoding", where)]


def speedup_plots(ratios: _Ratios, styles: dict[str, Style], prefix: str) -> list[Plot]:
    """One group of bars per shape: measured as a bar, the repeats' spread as a line, the bound as a diamond."""
    if not ratios:
        return []
    bars = sum(len(group) for group in ratios.values())
    figure, axes = panel(1.35 + 0.22 * bars + 0.16 * len(ratios))
    places = lay_rows([len(group) for group in ratios.values()], gap=0.7)
    for own, group in zip(places, ratios.values(), strict=True):
        for place, (label, each) in zip(own, group.items(), strict=True):
            axes.barh(place, each.ratio, height=0.78, color=styles[label].colour.light, label=label)
            axes.plot([each.low, each.high], [place, place], color=INK.light, linewidth=1.2)
            label_row_beside(axes, place, f"{each.ratio:.2f}{TIMES}", label, 8.5)
            if each.row.predicted_speedup is not None:
                marks: dict[str, Any] = {
                    "color": PAPER.light,
                    "markeredgecolor": INK.light,
                    "markersize": 4.5,
                    "linestyle": "none",
                }
                axes.plot(each.row.predicted_speedup, place, "D", label=BOUND, **marks)
    axes.axvline(1, color=MUTED.light, linewidth=1, linestyle=(0, (3, 2)))
    name_rows(axes, places, [_text(shape).replace(", ", "\n") for shape in ratios])
    axes.set_xlim(0, None)
    axes.margins(x=0.05)
    axes.set_xlabel("decode throughput, plain decoding = 1")
    axes.set_ylabel(f"context {TIMES} batch")
    legend_above(axes, [*styles, BOUND])
    caption = (
        "Decode throughput against plain decoding in the same file: bar, median of the repeats; line, their spread; "
        f"diamond, where there is one, {_BOUND_IS}."
    )
    return [Plot(f"{prefix}-speedup", figure, caption)]


def growth_plots(ratios: _Ratios, styles: dict[str, Style], prefix: str) -> list[Plot]:
    """One plot per batch that was measured at several contexts: speedup over context, the bound dashed."""
    plots = []
    for engine, temperature, batch in dict.fromkeys((s.engine, s.temperature, s.batch) for s in ratios):
        own = [s for s in ratios if (s.engine, s.temperature, s.batch) == (engine, temperature, batch)]
        if len({shape.context for shape in own}) < 2:
            continue
        figure, axes = panel(3.1)
        for label in dict.fromkeys(label for shape in own for label in ratios[shape]):
            curve = [(shape.context, ratios[shape][label]) for shape in own if label in ratios[shape]]
            draw_curve(axes, [(at, each.ratio, each.low, each.high) for at, each in curve], styles[label], label)
            draw_prediction(axes, [(at, e.row.predicted_speedup) for at, e in curve], styles[label].colour.light)
        axes.axhline(1, color=MUTED.light, linewidth=1)
        token_ticks(axes, [shape.context for shape in own])
        axes.set_ylim(0, None)
        axes.set_ylabel("speedup")
        legend_above(axes, styles)
        name = f"{prefix}-growth-{batch}" + (f"-t{temperature:g}" if temperature else "")
        at = f"batch {batch}" + (f" and temperature {temperature:g}" if temperature else "")
        caption = f"Speedup over context at {at}; hollow, where there is one, {_BOUND_IS}."
        plots.append(Plot(name, figure, caption))
    return plots


def phase_plots(shapes: _Shapes, prefix: str) -> list[Plot]:
    """Milliseconds of an iteration by phase, stacked."""
    sides = {(shape, label): row.milliseconds for shape, label, row in _each(shapes) if row.milliseconds}
    if not sides:
        return []
    colours = phase_colours(phase for times in sides.values() for phase in times)
    figure, axes, places = _side_rows(sides)
    for place, times in zip(places, sides.values(), strict=True):
        left = 0.0
        for phase in colours:
            axes.barh(place, times.get(phase, 0), left=left, height=0.78, color=colours[phase].light, label=phase)
            left += times.get(phase, 0)
        label_row(axes, left, place, f"{left:.3g}", fontsize=8)
    axes.set_xlabel("time per iteration (ms)")
    legend_above(axes, colours)
    return [Plot(f"{prefix}-phases", figure, "Where the time of an iteration goes.")]


def overhead_plots(shapes: _Shapes, styles: dict[str, Style], prefix: str) -> list[Plot]:
    """What scores and selection add to a verification, by shape; nothing where it was not measured."""
    sides = {
        (shape, label): 100 * row.selection_overhead
        for shape, label, row in _each(shapes)
        if row.selection_overhead is not None
    }
    if not sides:
        return []
    figure, axes, places = _side_rows(sides)
    for place, ((_, label), share) in zip(places, sides.items(), strict=True):
        axes.barh(place, share, height=0.78, color=styles[label].colour.light)
        label_row(axes, share, place, f"{share:.1f}", fontsize=8)
    axes.set_xlabel("selection overhead (% of a verification)")
    return [Plot(f"{prefix}-overhead", figure, "What scores and selection add to a verification without them.")]


def _each(shapes: _Shapes) -> Iterator[tuple[Shape, str, ThroughputRow]]:
    return ((shape, label, row) for shape, sides in shapes.items() for label, row in sides.items())


def _side_rows(sides: Collection[tuple[Shape, str]]) -> tuple[Figure, Axes, list[float]]:
    """Axes with a row for every side, named, shapes apart; and the rows' places."""
    sizes = Counter(shape for shape, _ in sides).values()
    figure, axes = panel(1.4 + 0.24 * len(sides) + 0.1 * len(sizes))
    places = [place for group in lay_rows(sizes, gap=0.5) for place in group]
    name_rows(axes, [[place] for place in places], [f"{label}, {_text(shape)}" for shape, label in sides], fontsize=8)
    axes.margins(x=0.12)
    return figure, axes, places


def speed_table(shapes: _Shapes) -> Table:
    """Speeds, ratios and what else was measured with them."""
    lines = []
    for shape, label, row in _each(shapes):
        each = speedups(shapes[shape]).get(label)
        overhead = None if row.selection_overhead is None else 100 * row.selection_overhead
        lines.append(
            [
                label,
                shape.context,
                shape.batch,
                shape.temperature,
                round(row.median, 1),
                f"{min(row.tokens_per_second):.1f} to {max(row.tokens_per_second):.1f}",
                _rounded(each.ratio if each else None, 3),
                _rounded(row.predicted_speedup, 3),
                _rounded(row.accepted_per_iteration, 2),
                _rounded(overhead, 1),
            ]
        )
    columns = ("policy", "context", "batch", "T", "tokens/s", "repeats", "speedup", BOUND, "accepted", "selecting (%)")
    return Table("Decode throughput", columns, lines).without_empty_columns()


def _baseline_sentence(shapes: _Shapes) -> str:
    without = [str(shape) for shape, sides in shapes.items() if BASELINE not in sides]
    if not without:
        return ""
    return f"No speedup can be told at {', '.join(without)}: plain decoding ({BASELINE!r}) was not measured there."


def _imposed_sentence(result: Result) -> str:
    rates = result.settings.get("imposed_acceptance")
    if not rates:
        return ""
    told = ", ".join(map(str, rates.split(",") if isinstance(rates, str) else rates))
    return (
        f"Random weights in the shapes of {result.model}, acceptance imposed (that drafts 1, 2, ... are all accepted: "
        f"{told}): a speedup here is what such acceptance gives, not what a model was seen to reach."
    )


def _text(shape: Shape) -> str:
    return str(shape).replace(" x ", f" {TIMES} ").replace("temperature", "T =")


def _rounded(value: float | None, digits: int) -> float | str:
    return "" if value is None else round(value, digits)


CHAPTER = Chapter(
    "Throughput",
    "Tokens per second while decoding; plain decoding, as measured in the same file, is 1.",
    throughput_block,
    throughput_headlines,
)
