"""The longer the context, the more there is to win."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from vegas_bench.claims.claim import Claim, Finding
from vegas_bench.results.results import Result
from vegas_bench.results.summary import REFERENCE, by_shape, speedups
from vegas_bench.results.wording import tokens_text


def measure(result: Result) -> Iterator[Finding]:
    """One finding per batch that was measured at two contexts or more."""
    curves: dict[tuple[int, float], list[tuple[int, float]]] = {}
    for shape, sides in by_shape(result.rows).items():
        each = speedups(sides).get(REFERENCE)
        if each is not None:
            curves.setdefault((shape.batch, shape.temperature), []).append((shape.context, each.ratio))
    for (batch, temperature), curve in curves.items():
        if len(curve) < 2:
            continue
        ratios = [ratio for _, ratio in sorted(curve)]
        grows = all(later > earlier for earlier, later in itertools.pairwise(ratios))
        told = ", ".join(f"{tokens_text(context)} {ratio:.2f}x" for context, ratio in sorted(curve))
        where = f"batch {batch}" + (f", temperature {temperature:g}" if temperature else "")
        yield Finding(where, told, "grows" if grows else "does not grow throughout")


CLAIM = Claim(
    title="Growth with the context",
    statement="The speedup over plain decoding grows with the length of the context.",
    paper="no figure in its summary",
    how="decode throughput, median of the repeats, vegas over plain decoding in the same run, by context",
    kind="throughput",
    measure=measure,
    run="throughput MODEL --engine vllm --policies full,vegas --contexts 8192,16384,32768,65536 --batches 4",
)
