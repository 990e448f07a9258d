"""Decoding speed against plain decoding by context and batch, beside the cost model's prediction; and by phase."""

from __future__ import annotations

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import INK, MUTED, PAPER, Style, phase_colours, policy_styles
from vegas_bench.report.parts import TIMES, Block, Plot, Table, legend_above, margin_label, panel, token_ticks
from vegas_bench.results.results import Result, ThroughputRow
from vegas_bench.results.summary import BASELINE, REFERENCE, Shape, Speedup, by_shape, speedups, tokens_text

_Shapes = dict[Shape, dict[str, ThroughputRow]]


def throughput_block(result: Result, prefix: str, heading: str, conditions: str) -> Block:
    """Everything about one throughput result."""
    shapes = by_shape(result.rows)
    styles = policy_styles(label for sides in shapes.values() for label in sides)
    ratios = {shape: found for shape, sides in shapes.items() if (found := speedups(sides))}
    plots = speedup_plots(ratios, styles, prefix) + growth_plots(ratios, styles, prefix)
    plots += phase_plots(shapes, prefix) + overhead_plots(shapes, styles, prefix)
    return Block(heading, conditions, plots, [speed_table(shapes)], [_baseline_sentence(shapes)])


def throughput_headlines(result: Result, conditions: str) -> list[Headline]:
    """The reference's best shape."""
    found = [
        (shape, ratios[REFERENCE])
        for shape, sides in by_shape(result.rows).items()
        if REFERENCE in (ratios := speedups(sides))
    ]
    if not found:
        return []
    shape, best = max(found, key=lambda each: each[1].ratio)
    where = f"{conditions}, {shape.batch} requests of {tokens_text(shape.context)}"
    return [Headline(f"{best.ratio:.2f}{TIMES}", "decode throughput of plain decoding", where)]


def speedup_plots(ratios: dict[Shape, dict[str, Speedup]], styles: dict[str, Style], prefix: str) -> list[Plot]:
    """One group of bars per shape: measured as a bar, the repeats' spread as a line, the prediction as a diamond."""
    if not ratios:
        return []
    bars = sum(len(group) for group in ratios.values())
    figure, axes = panel(1.35 + 0.22 * bars + 0.16 * len(ratios))
    place, ticks, names = 0.0, [], []
    predicted = False
    for shape in reversed(ratios):
        first = place
        for label, each in reversed(ratios[shape].items()):
            axes.barh(place, each.ratio, height=0.78, color=styles[label].colour.light)
            axes.plot([each.low, each.high], [place, place], color=INK.light, linewidth=1.2)
            margin_label(axes, place, f"{each.ratio:.2f}{TIMES}", bold=label == REFERENCE, fontsize=8.5)
            if each.row.predicted_speedup is not None:
                axes.plot(
                    each.row.predicted_speedup,
                    place,
                    "D",
                    color=PAPER.light,
                    markeredgecolor=INK.light,
                    markersize=4.5,
                    label=None if predicted else "predicted",
                    linestyle="none",
                )
                predicted = True
            place += 1
        ticks.append((first + place - 1) / 2)
        names.append(_text(shape).replace(", ", "\n"))
        place += 0.7
    axes.axvline(1, color=MUTED.light, linewidth=1, linestyle=(0, (3, 2)))
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", labelcolor=INK.light)
    axes.set_ylim(-0.8, place - 0.9)
    axes.set_xlim(0, None)
    axes.margins(x=0.05)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("decode throughput, plain decoding = 1")
    axes.set_ylabel(f"context {TIMES} batch")
    shown = dict.fromkeys(label for group in ratios.values() for label in group)
    for label in shown:
        axes.barh(0, 0, color=styles[label].colour.light, label=label)
    legend_above(axes, [*shown, "predicted"])
    caption = (
        "Decode throughput against plain decoding in the same run: bar, median of the repeats; line, their spread; "
        "diamond, the cost model's prediction from measured phases and acceptance."
    )
    return [Plot(f"{prefix}-speedup", figure, caption)]


def growth_plots(ratios: dict[Shape, dict[str, Speedup]], styles: dict[str, Style], prefix: str) -> list[Plot]:
    """One plot per batch that was measured at several contexts: speedup over context, prediction dashed."""
    plots = []
    for engine, temperature, batch in dict.fromkeys((s.engine, s.temperature, s.batch) for s in ratios):
        own = [s for s in ratios if (s.engine, s.temperature, s.batch) == (engine, temperature, batch)]
        if len({shape.context for shape in own}) < 2:
            continue
        figure, axes = panel(3.1)
        for label in dict.fromkeys(label for shape in own for label in ratios[shape]):
            curve = [(shape.context, ratios[shape][label]) for shape in own if label in ratios[shape]]
            style = styles[label]
            axes.errorbar(
                [context for context, _ in curve],
                [each.ratio for _, each in curve],
                yerr=[[e.ratio - e.low for _, e in curve], [e.high - e.ratio for _, e in curve]],
                marker=style.marker,
                color=style.colour.light,
                elinewidth=1,
                label=label,
            )
            model = [(c, e.row.predicted_speedup) for c, e in curve if e.row.predicted_speedup is not None]
            if model:
                axes.plot(
                    *zip(*model, strict=True),
                    marker="D",
                    markersize=4,
                    markerfacecolor=PAPER.light,
                    color=style.colour.light,
                    linewidth=1,
                    linestyle=(0, (3, 2)),
                )
        axes.axhline(1, color=MUTED.light, linewidth=1)
        token_ticks(axes, [shape.context for shape in own])
        axes.set_ylim(0, None)
        axes.set_ylabel("speedup")
        legend_above(axes, styles)
        name = f"{prefix}-growth-{batch}" + (f"-t{temperature:g}" if temperature else "")
        at = f"batch {batch}" + (f" and temperature {temperature:g}" if temperature else "")
        caption = f"Speedup over context at {at}; hollow, where there is one, the cost model's prediction."
        plots.append(Plot(name, figure, caption))
    return plots


def phase_plots(shapes: _Shapes, prefix: str) -> list[Plot]:
    """Milliseconds of an iteration by phase, stacked."""
    bars = [
        (shape, label, row.milliseconds)
        for shape, sides in shapes.items()
        for label, row in sides.items()
        if row.milliseconds
    ]
    if not bars:
        return []
    phases = list(dict.fromkeys(phase for _, _, times in bars for phase in times))
    colours = phase_colours(phases)
    figure, axes = panel(1.4 + 0.24 * len(bars) + 0.1 * len(shapes))
    place, ticks, names = 0.0, [], []
    last: Shape | None = None
    for shape, label, times in reversed(bars):
        place += 0.5 if last is not None and shape != last else 0
        last, left = shape, 0.0
        for phase in phases:
            axes.barh(place, times.get(phase, 0), left=left, height=0.78, color=colours[phase].light)
            left += times.get(phase, 0)
        axes.annotate(f"{left:.3g}", (left, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        ticks.append(place)
        names.append(f"{label}, {_text(shape)}")
        place += 1
    for phase in phases:
        axes.barh(0, 0, color=colours[phase].light, label=phase)
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", labelcolor=INK.light, labelsize=8)
    axes.set_ylim(-0.7, place - 0.3)
    axes.margins(x=0.1)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time per iteration (ms)")
    legend_above(axes, phases)
    return [Plot(f"{prefix}-phases", figure, "Where the time of an iteration goes.")]


def overhead_plots(shapes: _Shapes, styles: dict[str, Style], prefix: str) -> list[Plot]:
    """What scores and selection add to a verification, by shape; nothing where it was not measured."""
    bars = [
        (shape, label, 100 * row.selection_overhead)
        for shape, sides in shapes.items()
        for label, row in sides.items()
        if row.selection_overhead is not None
    ]
    if not bars:
        return []
    figure, axes = panel(1.3 + 0.22 * len(bars) + 0.1 * len(shapes))
    place, ticks = 0.0, []
    last: Shape | None = None
    for shape, label, share in reversed(bars):
        place += 0.5 if last is not None and shape != last else 0
        last = shape
        axes.barh(place, share, height=0.78, color=styles[label].colour.light)
        text = f"{share:.1f}"
        axes.annotate(text, (share, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        ticks.append(place)
        place += 1
    axes.set_yticks(ticks, [f"{label}, {_text(shape)}" for shape, label, _ in reversed(bars)])
    axes.tick_params(axis="y", labelcolor=INK.light, labelsize=8)
    axes.set_ylim(-0.7, place - 0.3)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("selection overhead (% of a verification)")
    return [Plot(f"{prefix}-overhead", figure, "What scores and selection add to a verification without them.")]


def speed_table(shapes: _Shapes) -> Table:
    """Speeds, ratios and what else was measured with them."""
    lines = []
    for shape, sides in shapes.items():
        ratios = speedups(sides)
        for label, row in sides.items():
            each = ratios.get(label)
            lines.append(
                [
                    label,
                    shape.context,
                    shape.batch,
                    shape.temperature,
                    round(row.median, 1),
                    f"{min(row.tokens_per_second):.1f} to {max(row.tokens_per_second):.1f}",
                    round(each.ratio, 3) if each else "",
                    _rounded(row.predicted_speedup, 3),
                    _rounded(row.accepted_per_iteration, 2),
                    _rounded(None if row.selection_overhead is None else 100 * row.selection_overhead, 1),
                ]
            )
    columns = (
        "policy",
        "context",
        "batch",
        "T",
        "tokens/s",
        "repeats",
        "speedup",
        "predicted",
        "accepted",
        "selecting (%)",
    )
    return Table("Decode throughput", columns, lines).without_empty_columns()


def _baseline_sentence(shapes: _Shapes) -> str:
    without = [str(shape) for shape, sides in shapes.items() if BASELINE not in sides]
    if not without:
        return ""
    return f"No speedup can be told at {', '.join(without)}: plain decoding ({BASELINE!r}) was not measured there."


def _text(shape: Shape) -> str:
    temperature = f", T = {shape.temperature:g}" if shape.temperature else ""
    return f"{tokens_text(shape.context)} {TIMES} {shape.batch}{temperature}"


def _rounded(value: float | None, digits: int) -> float | str:
    return "" if value is None else round(value, digits)
