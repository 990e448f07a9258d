"""Decoding is faster than with the best of the baselines."""

from __future__ import annotations

from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding, Range
from vegas_bench.results.results import Result
from vegas_bench.results.summary import BASELINE, REFERENCE, by_shape, is_rival, policy_name

CLAIMED = Range(1.15, 1.29)


def measure(result: Result) -> Iterator[Finding]:
    """One finding per shape; plain decoding is one of the baselines, variants of vegas are not."""
    for shape, sides in by_shape(result.rows).items():
        own = sides.get(REFERENCE)
        baselines = {
            label: row
            for label, row in sides.items()
            if policy_name(label) == BASELINE or (is_rival(label) and policy_name(label) != REFERENCE)
        }
        # Against plain decoding alone it would be another claim.
        if own is None or not set(map(policy_name, baselines)) - {BASELINE}:
            continue
        best = max(baselines, key=lambda label: baselines[label].median)
        ratio = own.median / baselines[best].median
        where = f"{shape}, of {', '.join(baselines)} the best is {best}"
        yield Finding(where, f"{ratio:.2f}x", CLAIMED.verdict(ratio))


CLAIM = Claim(
    title="Throughput over the best baseline",
    statement="Vegas decodes more tokens per second than any baseline.",
    paper="1.15x to 1.29x",
    how="decode throughput, median of the repeats, vegas over the fastest other side of the same shape and run",
    kind="throughput",
    measure=measure,
    run="throughput MODEL --engine vllm --policies full,vegas,stream,quest --contexts 16384,32768 --batches 16",
)
