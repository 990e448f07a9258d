"""Choosing the KV entries costs little, since verification has scored them already."""

from __future__ import annotations

from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding, Range
from vegas_bench.results.results import Result
from vegas_bench.results.summary import by_shape, policy_name

CLAIMED = {"vegas": Range(5.9, 9.4), "quest": Range(21.7, 21.7), "specextend": Range(11.2, 29.1)}


def measure(result: Result) -> Iterator[Finding]:
    """One finding per shape and side whose overhead was measured."""
    for shape, sides in by_shape(result.rows).items():
        for label, row in sides.items():
            if row.selection_overhead is not None and policy_name(label) in CLAIMED:
                share = 100 * row.selection_overhead
                verdict = CLAIMED[policy_name(label)].verdict(round(share, 1))
                yield Finding(f"{label}, {shape}", f"{share:.1f} %", verdict)


CLAIM = Claim(
    title="Selection overhead",
    statement="Selecting costs less than with Quest and SpecExtend.",
    paper="5.9 % to 9.4 %; Quest 21.7 %, SpecExtend 11.2 % to 29.1 %",
    how="time of scores and selection per iteration, as a share of a verification without them",
    kind="throughput",
    measure=measure,
    # In the embedded engine: vLLM's clock does not tell the choosing of quest and specextend from drafting.
    run="throughput MODEL --policies full,vegas,quest,specextend --contexts 16384,32768 --batches 4",
)
