"""The first and the last verified row choose as well as all rows do (Collect-2-Query)."""

from __future__ import annotations

from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import Result
from vegas_bench.results.summary import pairs, points
from vegas_bench.results.wording import count_text

ALL_ROWS = "vegas:rows=all"


def measure(result: Result) -> Iterator[Finding]:
    """One finding per draft length and budget at which both were measured."""
    for point in points(result.rows):
        compared = pairs(result.rows, point).get(ALL_ROWS)
        if compared:
            ahead = bootstrap_mean([pair.difference for pair in compared])
            settled = ahead.low > 0 or ahead.high < 0
            verdict = ("two rows better" if ahead.mean > 0 else "all rows better") if settled else "no difference shown"
            yield Finding(
                f"{point}, {count_text(len(compared), 'prompt')}",
                f"{ahead.mean:+.2f} accepted per iteration ({ahead.low:+.2f} to {ahead.high:+.2f})",
                verdict,
            )


CLAIM = Claim(
    title="Collect-2-Query against all rows",
    statement="Scoring by the first and the last verified row alone, whose cost does not grow with the draft length, "
    "costs no acceptance.",
    paper="no figure in its summary",
    how="accepted drafts per iteration, two rows less all rows, prompt by prompt, with the 95 % bootstrap interval "
    "over prompts",
    kind="acceptance",
    measure=measure,
    run="acceptance MODEL --policies vegas,vegas:rows=all --workload source --workload needle --prompts 10",
)
