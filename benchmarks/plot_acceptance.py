"""Draw a result of ``vegas bench acceptance``: accepted drafts per iteration, a bar per policy and a dot per prompt.

python benchmarks/plot_acceptance.py benchmarks/results/acceptance_h200.json docs/images/acceptance.svg
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib.pyplot as plt

from vegas_bench.results.results import AcceptanceRow, load

plt.rcParams["svg.hashsalt"] = "vegas"  # the same picture is the same file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    result = load(arguments.result)
    by_policy: dict[str, list[AcceptanceRow]] = {}
    for row in result.rows:
        by_policy.setdefault(row.policy, []).append(row)
    policies = list(by_policy)[::-1]
    lengths = [row.prompt_tokens for row in by_policy[policies[0]]]

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    colours = ["#2a9d8f" if policy == "vegas" else "#b8c4ce" for policy in policies]
    accepted = [[row.accepted_per_iteration for row in by_policy[policy]] for policy in policies]
    axes.barh(policies, [statistics.mean(each) for each in accepted], color=colours, height=0.7)
    for place, each in enumerate(accepted):
        axes.scatter(each, [place] * len(each), s=8, color="#264653", alpha=0.5, linewidths=0)
        axes.text(0.08, place, f"{statistics.mean(each):.2f}", va="center", fontsize=9)
    drafts = result.rows[0].config["num_speculative_tokens"]
    axes.set_xlim(0, drafts + 0.1)
    axes.set_xlabel(f"accepted drafts per iteration, of {drafts} (bar: mean, dot: one prompt)")
    figure.suptitle(
        f"{result.model}, {len(lengths)} prompts of {min(lengths):,} to {max(lengths):,} tokens, greedy, "
        f"{result.settings['dtype']}, {result.environment['hardware']}",
        fontsize=9,
    )
    axes.spines[["top", "right"]].set_visible(False)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
