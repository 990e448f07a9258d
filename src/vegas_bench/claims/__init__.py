"""The paper's claims, a file each, and what stored results say of them."""

from collections.abc import Sequence

from vegas_bench.claims import (
    acceptance_vs_stream,
    collect_two_queries,
    context_growth,
    selection_in_kernels,
    selection_overhead,
    throughput_vs_best,
)
from vegas_bench.report.loading import Source

CLAIMS = (
    acceptance_vs_stream.CLAIM,
    throughput_vs_best.CLAIM,
    selection_overhead.CLAIM,
    selection_in_kernels.CLAIM,
    collect_two_queries.CLAIM,
    context_growth.CLAIM,
)


def markdown(sources: Sequence[Source]) -> str:
    """Tell all claims, and what these results say of them."""
    return "\n".join(claim.markdown(sources) for claim in CLAIMS)
