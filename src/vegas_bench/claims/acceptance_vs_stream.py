"""More drafts are accepted than with a sliding window (MagicDec-Stream)."""

from __future__ import annotations

from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding, Range
from vegas_bench.results.intervals import ratio_of_means
from vegas_bench.results.results import Result
from vegas_bench.results.summary import pairs, points
from vegas_bench.results.wording import count_text

CLAIMED = Range(1.15, 1.23)


def measure(result: Result) -> Iterator[Finding]:
    """One finding per draft length and budget at which both were measured."""
    for point in points(result.rows):
        compared = pairs(result.rows, point).get("stream")
        if compared:
            ratio = ratio_of_means(
                [pair.reference.accepted_per_iteration for pair in compared],
                [pair.other.accepted_per_iteration for pair in compared],
            )
            lost = sum(pair.difference < 0 for pair in compared)
            yield Finding(
                f"{point}, {count_text(len(compared), 'prompt')} (stream ahead on {lost})",
                f"{ratio.mean:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})",
                CLAIMED.verdict(ratio.mean),
            )


CLAIM = Claim(
    title="Acceptance against MagicDec-Stream",
    statement="Vegas drafts are accepted more often than those over attention sinks and a sliding window.",
    paper="1.15x to 1.23x",
    how=(
        "accepted drafts per iteration, mean over prompts, vegas over stream, with the 95 % bootstrap interval over "
        "prompts"
    ),
    kind="acceptance",
    measure=measure,
    run="acceptance MODEL --policies vegas,stream --workload source --workload needle --prompts 10",
)
