"""Colours of plots and pages, once for light and once for dark, and who has which.

Plots are drawn in the light colours; on a page each of them becomes a CSS variable (`vegas_bench.report.svg`), so
that one drawing serves both. Hues follow Okabe and Ito (2008), told apart with any colour vision, darkened or
lightened to stand out from the background; curves differ in their marks too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A CSS variable's name and its two values; values are unique among the light ones."""

    name: str
    light: str
    dark: str


INK = Colour("ink", "#1b2129", "#e7ebf0")
MUTED = Colour("muted", "#5b6673", "#9aa6b4")
GRID = Colour("grid", "#e3e7ec", "#2b333d")
PAPER = Colour("paper", "#fefefe", "#14191f")

BLUE = Colour("blue", "#0a68b0", "#5db2f2")
ORANGE = Colour("orange", "#c4560a", "#f2935c")
GREEN = Colour("green", "#0b8564", "#43c79d")
PURPLE = Colour("purple", "#a2468a", "#de90c8")
YELLOW = Colour("yellow", "#a67c00", "#e3bd4b")
SKY = Colour("sky", "#4c9fd6", "#8fd0f7")
SLATE = Colour("slate", "#7b8692", "#8996a4")
GREY = Colour("grey", "#454f5b", "#c3ccd6")

COLOURS = (INK, MUTED, GRID, PAPER, BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, SLATE, GREY)


@dataclass(frozen=True)
class Style:
    """How one policy is drawn everywhere."""

    colour: Colour
    marker: str


_OWN = {
    "vegas": Style(BLUE, "o"),
    "stream": Style(ORANGE, "s"),
    "quest": Style(GREEN, "D"),
    "specextend": Style(PURPLE, "^"),
    "oracle": Style(GREY, "*"),
    "dense": Style(SLATE, "P"),
    "full": Style(SLATE, "X"),
}
_OTHER_COLOURS = (YELLOW, SKY, GREY, PURPLE, GREEN)
_OTHER_MARKERS = (
    "v",
    "<",
    ">",
    "h",
    "p",
    "d",
    "H",
)  # as many as share no factor with the colours: each pair comes once

PHASES = {
    "draft": SKY,
    "verify": BLUE,
    "scores": YELLOW,
    "select": ORANGE,
    "accept": PURPLE,
    "prefill": SLATE,
}


def policy_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Give each label its style: those of `_OWN` always the same one, all others one by order of appearance."""
    wanted = list(dict.fromkeys(labels))
    taken = {_OWN[label].colour for label in wanted if label in _OWN}
    # Colours that nobody here has come first.
    colours = sorted(_OTHER_COLOURS, key=lambda colour: colour in taken)
    others = map(Style, itertools.cycle(colours), itertools.cycle(_OTHER_MARKERS))
    return {label: _OWN[label] if label in _OWN else next(others) for label in wanted}


def phase_colours(phases: Iterable[str]) -> dict[str, Colour]:
    """Give each phase its colour: known phases always the same one."""
    others = itertools.cycle((GREEN, GREY))
    return {phase: PHASES.get(phase) or next(others) for phase in dict.fromkeys(phases)}


def css_variables(dark: bool) -> str:
    """CSS declarations of all colours in one theme."""
    return " ".join(f"--{colour.name}: {colour.dark if dark else colour.light};" for colour in COLOURS)
