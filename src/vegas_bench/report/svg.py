"""Matplotlib figures as files, and as SVG that lives in a page: in its fonts, and in its light and dark colours."""

from __future__ import annotations

import io
import re
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vegas_bench.report.palette import COLOURS, GRID, INK, MUTED, PAPER

PANEL_WIDTH = 4.4  # inches; a phone shows a panel at about this size, so its text stays readable there

RC: Any = {
    "svg.fonttype": "none",  # text stays text: small, and in the page's font
    "svg.hashsalt": "vegas",  # the same picture is the same file
    "text.parse_math": False,  # labels are people's own: a dollar sign begins no formula
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": INK.light,
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": MUTED.light,
    "axes.titlecolor": INK.light,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": PAPER.light,
    "savefig.facecolor": PAPER.light,
}


def save_files(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``, in light colours on a light background, and give their paths."""
    svg, png = stem.with_suffix(".svg"), stem.with_suffix(".png")
    figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=200)
    return [svg, png]


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Draw a figure as an ``<svg>`` element for a page.

    Colours of the palette become its CSS variables, text takes the page's font, the background is transparent, and ids
    begin with `name`, so that figures do not take each other's. What is read aloud is `description`.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    # The style element would hold for the whole page.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"\sxmlns(:xlink)?=\"[^\"]*\"|\sversion=\"[^\"]*\"", "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'id="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"font: ([^;\"]*?\d+(?:\.\d+)?px) [^;\"]*", r"font: \1 var(--sans)", svg)
    for colour in COLOURS:
        svg = re.sub(re.escape(colour.light), f"var(--{colour.name})", svg, flags=re.I)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    head = f'<svg class="plot" role="img" aria-label="{escape(description)}" viewBox="0 0 {width} {height}">'
    return re.sub(r"<svg[^>]*>", lambda _: head, svg, count=1).strip()
