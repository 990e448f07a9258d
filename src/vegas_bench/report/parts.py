"""What a page is made of: sections with blocks of plots, notes and tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vegas_bench.report.svg import PANEL_WIDTH
from vegas_bench.results.summary import tokens_text

TIMES = "\N{MULTIPLICATION SIGN}"

_LEGEND_CHARACTERS = 52
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
    """What one result has to show in a section."""

    heading: str
    conditions: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A chapter of the page; one without blocks is left out."""

    name: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)


def panel(height: float = 3.0, width: float = PANEL_WIDTH) -> tuple[Figure, Axes]:
    """Give an empty figure of the size of a phone's screen, with one set of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def margin_label(axes: Axes, place: float, text: str, bold: bool, fontsize: float) -> None:
    """Write a bar's value beside the axes, at its height."""
    axes.annotate(
        text,
        (1, place),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=fontsize,
        fontweight="bold" if bold else "normal",
    )


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
