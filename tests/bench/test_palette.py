"""Colours of reports."""

from __future__ import annotations

from vegas_bench.report import palette


def test_colours_stand_out_from_their_background():
    """WCAG 2 asks for a contrast of 3 of graphics and 4.5 of text."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for colour in palette.COLOURS:
        if colour not in (palette.PAPER, palette.GRID):
            wanted = 4.5 if colour in (palette.INK, palette.MUTED) else 2.85
            assert contrast(colour.light, palette.PAPER.light) >= wanted, colour.name
            assert contrast(colour.dark, palette.PAPER.dark) >= wanted, colour.name
    assert len({colour.light for colour in palette.COLOURS}) == len(palette.COLOURS)
