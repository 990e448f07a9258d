"""A grouped bar chart as SVG, without a plotting library."""

from __future__ import annotations

from xml.sax.saxutils import escape

COLOURS = ("#9aa5b1", "#2f6fb0", "#174a7c", "#d9b38c", "#c4661f")


def bars(title: str, caption: str, groups: dict[str, dict[str, float]]) -> str:
    """Draw shares between 0 and 1: one group of bars per key, the same bars in each."""
    bar, gap, height, left, top = 16, 26, 220, 50, 70
    names = list(next(iter(groups.values())))
    group_width = len(names) * bar + gap
    width = left + len(groups) * group_width + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height + 70}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="18" font-size="14">{escape(title)}</text>',
        f'<text x="{left}" y="34" fill="#666">{escape(caption)}</text>',
    ]
    for index, name in enumerate(names):
        x = left + index * 150
        parts.append(f'<rect x="{x}" y="44" width="10" height="10" fill="{COLOURS[index]}"/>')
        parts.append(f'<text x="{x + 14}" y="53">{escape(name)}</text>')
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - tick)
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:.0%}</text>')
    for place, (group, values) in enumerate(groups.items()):
        x = left + gap / 2 + place * group_width
        for index, name in enumerate(names):
            length = height * min(values[name], 1.0)
            y = top + height - length
            parts.append(
                f'<rect x="{x + index * bar}" y="{y:.1f}" width="{bar - 2}" height="{length:.1f}" '
                f'fill="{COLOURS[index]}"><title>{escape(f"{group}, {name}: {values[name]:.0%}")}</title></rect>'
            )
        model, _, shape = group.partition(" ")
        middle = x + len(names) * bar / 2
        parts.append(f'<text x="{middle}" y="{top + height + 16}" text-anchor="middle">{escape(model)}</text>')
        parts.append(f'<text x="{middle}" y="{top + height + 30}" text-anchor="middle">{escape(shape)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
