"""A grouped bar chart of shares."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

plt.rcParams["svg.hashsalt"] = "vegas"  # the same picture is the same file

COLOURS = ("#9aa5b1", "#2f6fb0", "#174a7c", "#d9b38c", "#c4661f")


def draw_bars(path: Path, title: str, caption: str, groups: dict[str, dict[str, float]]) -> None:
    """Draw shares between 0 and 1, as the file's ending says: one group of bars per key, the same bars in each."""
    names = list(next(iter(groups.values())))
    width = 0.8 / len(names)
    figure, axes = plt.subplots(figsize=(1.3 * len(groups) + 1, 4), layout="constrained")
    for index, name in enumerate(names):
        places = [group + (index - (len(names) - 1) / 2) * width for group in range(len(groups))]
        heights = [values[name] for values in groups.values()]
        axes.bar(places, heights, width * 0.9, color=COLOURS[index], label=name)
    axes.set_xticks(range(len(groups)), [group.replace(" ", "\n", 1) for group in groups], fontsize=8)
    axes.set_ylim(0, 1.1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", color="#ddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=len(names), loc="upper left", fontsize=8, frameon=False)
    axes.set_title(f"{title}\n{caption}", fontsize=9, loc="left")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
