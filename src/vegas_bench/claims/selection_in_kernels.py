"""In the kernels, scoring and choosing cost little beside FlashAttention 3."""

from __future__ import annotations

from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding, Range
from vegas_bench.results.results import Result

CLAIMED = Range(5.9, 9.4)


def measure(result: Result) -> Iterator[Finding]:
    """One finding per case in which FlashAttention 3 was timed, too."""
    for row in result.rows:
        times = row.milliseconds
        if "fa3" in times and "verify_select_weight" in times:
            overhead = 100 * (times["verify_select_weight"] / times["fa3"] - 1)
            yield Finding(row.case, f"{overhead:.1f} %", CLAIMED.verdict(round(overhead, 1)))


CLAIM = Claim(
    title="Selection overhead of the kernels",
    statement="Scoring every key and choosing from the scores adds little to FlashAttention 3.",
    paper="5.9 % to 9.4 %",
    how=(
        "one layer's verification with scores (softmax weights) and selection, less FlashAttention 3 without them, as "
        "a share of the latter"
    ),
    kind="kernels",
    measure=measure,
    run="kernels",
)
