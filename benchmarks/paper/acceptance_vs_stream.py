"""Claim: more drafts are accepted than with a sliding window (MagicDec-Stream).

python benchmarks/paper/acceptance_vs_stream.py [RESULTS...]
python benchmarks/paper/acceptance_vs_stream.py --run MODEL [-- options of `vegas bench acceptance`]
"""

from __future__ import annotations

from collections.abc import Iterator

from _claims import Claim, Finding, Range, main

from vegas_bench.results.results import Result
from vegas_bench.results.summary import pairs, points, ratio_of_means

CLAIMED = Range(1.15, 1.23)


def measure(result: Result) -> Iterator[Finding]:
    """One finding per draft length and budget at which both were measured."""
    for point in points(result.rows):
        compared = pairs(result.rows, point).get("stream")
        if compared:
            ratio = ratio_of_means([pair.reference for pair in compared], [pair.other for pair in compared])
            lost = sum(pair.difference < 0 for pair in compared)
            yield Finding(
                f"{point}, {len(compared)} prompts (stream ahead on {lost})",
                f"{ratio.mean:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})",
                CLAIMED.verdict(ratio.mean),
            )


CLAIM = Claim(
    name="acceptance_vs_stream",
    title="Acceptance against MagicDec-Stream",
    statement="Vegas drafts are accepted more often than those over attention sinks and a sliding window.",
    paper="1.15x to 1.23x",
    how=(
        "accepted drafts per iteration, mean over prompts, vegas over stream, with the 95 % bootstrap interval over "
        "prompts"
    ),
    kind="acceptance",
    measure=measure,
    run=["--policies", "vegas,stream", "--workload", "source", "--workload", "needle", "--prompts", "10"],
)

if __name__ == "__main__":
    main(CLAIM)
