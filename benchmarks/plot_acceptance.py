"""Draw the result of ``acceptance.py``: accepted drafts per iteration, a bar per variant and a dot per prompt.

python benchmarks/plot_acceptance.py benchmarks/results/acceptance_h200.json docs/images/acceptance.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

plt.rcParams["svg.hashsalt"] = "vegas"  # the same picture is the same file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text())
    rows = result["rows"][::-1]
    lengths = [prompt["prompt_tokens"] for prompt in rows[0]["prompts"]]

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    default = ["(default" in row["variant"] for row in rows]
    colours = ["#2a9d8f" if is_default else "#b8c4ce" for is_default in default]
    axes.barh([row["variant"] for row in rows], [row["mean"] for row in rows], color=colours, height=0.7)
    for place, row in enumerate(rows):
        accepted = [prompt["accepted_per_draft"] for prompt in row["prompts"]]
        axes.scatter(accepted, [place] * len(accepted), s=8, color="#264653", alpha=0.5, linewidths=0)
        axes.text(0.08, place, f"{row['mean']:.2f}", va="center", fontsize=9)
    drafts = rows[0]["config"]["num_speculative_tokens"]
    axes.set_xlim(0, drafts + 0.1)
    axes.set_xlabel(f"accepted drafts per iteration, of {drafts} (bar: mean, dot: one prompt)")
    figure.suptitle(
        f"{result['model']}, {len(lengths)} prompts of {min(lengths):,} to {max(lengths):,} tokens, greedy, "
        f"{result['dtype'].removeprefix('torch.')}, {result['hardware']}",
        fontsize=9,
    )
    axes.spines[["top", "right"]].set_visible(False)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
