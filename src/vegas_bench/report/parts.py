"""What a page is made of, sections with blocks of plots, notes and tables; and what plots of several kinds share."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import INK, PAPER, Style
from vegas_bench.report.svg import PANEL_WIDTH
from vegas_bench.results.results import Result
from vegas_bench.results.summary import REFERENCE
from vegas_bench.results.wording import tokens_text

TIMES = "\N{MULTIPLICATION SIGN}"

# What fits a panel in `svg.RC`'s font. Chosen by hand.
_LEGEND_CHARACTERS = 52  # of one row
_LEGEND_ROW = 0.17  # inches
_TICK_CHARACTERS = 20


@dataclass(frozen=True)
class Plot:
    """A figure with the name of its files, and what it shows in a sentence."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers stay numbers, so that they sort as such."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def without_empty_columns(self) -> Table:
        """Leave out what no row has."""
        kept = [place for place in range(len(self.columns)) if any(row[place] != "" for row in self.rows)]
        rows = [[row[place] for place in kept] for row in self.rows]
        return Table(self.title, [self.columns[place] for place in kept], rows)

    def text(self, column: int, value: float) -> str:
        """Write a number with as many decimals as its column needs (at most 4 beyond the point)."""
        return f"{value:.{self._decimals[column]}f}" if isinstance(value, float) else str(value)

    @functools.cached_property
    def _decimals(self) -> list[int]:
        def needed(cell: object) -> int:
            return len(f"{cell:.4f}".rstrip("0").partition(".")[2]) if isinstance(cell, float) else 0

        return [max(map(needed, column), default=0) for column in zip(*self.rows, strict=True)]


@dataclass(frozen=True)
class Block:
    """What one result has to show in a section; `about` goes with its conditions."""

    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    about: str = ""
    heading: str = ""


@dataclass(frozen=True)
class Chapter:
    """What the results of one kind are shown as; a block gets a prefix for the names of its plots."""

    title: str
    lead: str
    block: Callable[[Result, str], Block]
    headlines: Callable[[Result], list[Headline]] = lambda result: []


def panel(height: float) -> tuple[Figure, Axes]:
    """Give an empty figure of the size of a phone's screen, with one set of axes."""
    figure = Figure(figsize=(PANEL_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def lay_rows(sizes: Iterable[int], gap: float = 0.0) -> list[list[float]]:
    """Heights of rows in groups of these sizes, with a gap between groups."""
    places: list[list[float]] = []
    top = 0.0
    for size in sizes:
        places.append([top - row for row in range(size)])
        top -= size + gap
    return places


def name_rows(axes: Axes, places: Sequence[Sequence[float]], names: Sequence[str], fontsize: float = 8.5) -> None:
    """Name groups of rows (or each, as a group of one) beside their middles, and draw lines for values alone."""
    axes.set_yticks([statistics.fmean(group) for group in places], names)
    axes.tick_params(axis="y", labelcolor=INK.light, labelsize=fontsize)
    axes.set_ylim(places[-1][-1] - 0.75, places[0][0] + 0.75)
    axes.grid(axis="y", visible=False)


def label_row(axes: Axes, end: float, place: float, text: str, right: float = 4, **font: Any) -> None:
    """Write a row's value where its bar ends."""
    axes.annotate(text, (end, place), xytext=(right, 0), textcoords="offset points", va="center", **font)


def label_row_beside(axes: Axes, place: float, text: str, label: str, fontsize: float) -> None:
    """Write a row's value beside the axes, the reference's in bold."""
    weight = "bold" if label == REFERENCE else "normal"
    label_row(axes, 1, place, text, 6, xycoords=("axes fraction", "data"), fontweight=weight, fontsize=fontsize)


def draw_curve(axes: Axes, points: Sequence[tuple[float, float, float, float]], style: Style, label: str) -> None:
    """Draw x, y, and the bounds of y."""
    x, y, low, high = zip(*points, strict=True)
    spread = [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
    axes.errorbar(x, y, yerr=spread, elinewidth=1, label=label, **_line(style, label))


def draw_prediction(axes: Axes, points: Sequence[tuple[float, float | None]], colour: str, label: str = "") -> None:
    """Draw what was predicted, hollow and dashed; nothing where nothing was."""
    known = [(x, y) for x, y in points if y is not None]
    marks: dict[str, Any] = {"marker": "D", "markersize": 4, "markerfacecolor": PAPER.light, "linestyle": (0, (3, 2))}
    if known:
        axes.plot(*zip(*known, strict=True), color=colour, linewidth=1, label=label or None, **marks)


def draw_shares(axes: Axes, shares: Sequence[float], style: Style, label: str) -> None:
    """Draw shares at 1, 2, ... in percent."""
    axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], label=label, **_line(style, label))
    axes.set_ylim(0, 103)


def _line(style: Style, label: str) -> dict[str, Any]:
    return {"marker": style.marker, "color": style.colour.light, "zorder": 3 if label == REFERENCE else 2}


def token_ticks(axes: Axes, contexts: Sequence[int]) -> None:
    """Make x a logarithmic axis of context lengths."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(contexts))
    axes.set_xticks(ticks, [tokens_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("context (tokens)")


def legend_above(axes: Axes, order: Iterable[str]) -> None:
    """Put the legend above the axes, where it hides nothing, its entries in this order.

    There are as many columns as fit, and the figure grows by what the rows take, so that the axes keep their size.
    """
    found = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = [label for label in dict.fromkeys(order) if label in found]
    if not labels:
        return
    columns = max(1, min(len(labels), _LEGEND_CHARACTERS // (max(map(len, labels)) + 4)))
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * (math.ceil(len(labels) / columns) - 1))
    axes.legend(
        [found[label] for label in labels],
        labels,
        ncols=columns,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        borderaxespad=0.2,
        columnspacing=1.1,
        handletextpad=0.4,
        handlelength=1.4,
    )


def tick_label(label: str) -> str:
    """Break the label of a variant, ``vegas:rows=all:score=logit``, into lines of some length."""
    lines = [""]
    for part in label.split(":"):
        if lines[-1] and len(lines[-1]) + len(part) > _TICK_CHARACTERS:
            lines[-1] += ":"
            lines.append(part)
        else:
            lines[-1] += f":{part}" if lines[-1] else part
    return "\n".join(lines)
