"""What result files say when they are put together: means with intervals, ratios, and who lost where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vegas_bench.results.intervals import Interval, bootstrap_mean
from vegas_bench.results.results import AcceptanceRow, ThroughputRow

REFERENCE = "vegas"
"""The policy that others are compared with."""

BASELINE = "full"
"""The side that speed is measured against: plain decoding."""

_NO_RIVALS = frozenset({"dense", "oracle", "full"})
_READ_EVERYTHING = frozenset({"dense", "full"})


@dataclass(frozen=True)
class Point:
    """Draft length and budget that policies are compared at."""

    gamma: int
    budget: float

    def __str__(self) -> str:
        return f"{self.gamma} drafts, budget {100 * self.budget:.3g}\u00a0%"


def point_of(row: AcceptanceRow | ThroughputRow) -> Point:
    """Draft length and budget of a row; zeros where it drafts nothing."""
    return Point(row.config.get("num_speculative_tokens", 0), row.config.get("kv_budget", 0.0))


def policy_name(label: str) -> str:
    """Name of the policy that a label is about: ``vegas`` of ``vegas:rows=all``."""
    return label.partition(":")[0].partition(" (")[0]


def is_rival(policy: str) -> bool:
    """Whether the policy of a label is a cheaper way to draft: not an upper bound, not plain decoding."""
    return policy_name(policy) not in _NO_RIVALS


def by_policy(rows: Iterable[AcceptanceRow], point: Point) -> dict[str, list[AcceptanceRow]]:
    """Rows of one point by the policy's label, in order of appearance.

    A policy that reads everything has no budget: it belongs to all points of its draft length. Prompts without drafts
    say nothing of acceptance and are left out.
    """
    groups: dict[str, list[AcceptanceRow]] = {}
    for row in rows:
        own = point_of(row)
        if row.drafts and (own == point or (own.gamma == point.gamma and policy_name(row.policy) in _READ_EVERYTHING)):
            groups.setdefault(row.policy, []).append(row)
    return groups


def points(rows: Iterable[AcceptanceRow]) -> list[Point]:
    """All points, the one with most policies (and then most rows) first: that is where policies are compared."""
    drafted = [row for row in rows if row.drafts]
    budgeted = [row for row in drafted if policy_name(row.policy) not in _READ_EVERYTHING] or drafted
    count = Counter(point_of(row) for row in budgeted)
    policies = {point: len({row.policy for row in budgeted if point_of(row) == point}) for point in count}
    return sorted(count, key=lambda point: (-policies[point], -count[point]))


def acceptance(rows: Sequence[AcceptanceRow]) -> Interval:
    """Accepted drafts per iteration, mean over prompts."""
    return bootstrap_mean([row.accepted_per_iteration for row in rows])


def position_rates(rows: Sequence[AcceptanceRow]) -> list[float]:
    """Share of the drafts at distance 1, 2, ... that were accepted, all prompts pooled."""
    length = max((len(row.proposed_per_position) for row in rows), default=0)
    rates = []
    for place in range(length):
        proposed = sum(row.proposed_per_position[place] for row in rows if place < len(row.proposed_per_position))
        accepted = sum(row.accepted_per_position[place] for row in rows if place < len(row.accepted_per_position))
        if not proposed:
            break
        rates.append(accepted / proposed)
    return rates


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of one side over mean of the other, prompt by prompt the same, with its 95 % bootstrap interval.

    Prompts are drawn anew as pairs (Efron 1979); a draw in which the other side's mean is 0 counts as infinite.
    """
    data = np.array([ours, theirs], dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, data.shape[1], size=(10_000, data.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(np.divide(*data[:, picks].mean(-1)), nan=np.inf)
        ratio = float(np.divide(*data.mean(-1)))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(ratio, float(low), float(high))


@dataclass(frozen=True)
class Pair:
    """One prompt, completed with a policy and with the reference at the same point."""

    workload: str
    kind: str
    prompt: str
    prompt_tokens: int
    policy: str
    other: float
    reference: float

    @property
    def difference(self) -> float:
        """Accepted drafts per iteration, the reference's less the policy's."""
        return self.reference - self.other


def pairs(rows: Iterable[AcceptanceRow], point: Point, reference: str = REFERENCE) -> dict[str, list[Pair]]:
    """Pair the reference with each other policy, prompt by prompt."""
    groups = by_policy(rows, point)
    own = {(row.workload, row.prompt, row.prompt_tokens): row for row in groups.get(reference, [])}
    found: dict[str, list[Pair]] = {}
    for policy, others in groups.items():
        if policy == reference:
            continue
        for row in others:
            mine = own.get((row.workload, row.prompt, row.prompt_tokens))
            if mine is not None:
                accepted = row.accepted_per_iteration, mine.accepted_per_iteration
                about = row.workload, row.kind, row.prompt, row.prompt_tokens
                found.setdefault(policy, []).append(Pair(*about, policy, *accepted))
    return found


def losses(rows: Iterable[AcceptanceRow], point: Point, reference: str = REFERENCE) -> list[Pair]:
    """Prompts on which a rival was accepted more often than the reference, the worst first."""
    lost = [
        pair
        for policy, compared in pairs(rows, point, reference).items()
        if is_rival(policy)
        for pair in compared
        if pair.difference < 0
    ]
    return sorted(lost, key=lambda pair: pair.difference)


@dataclass(frozen=True)
class Shape:
    """What a speed was measured at."""

    engine: str
    temperature: float
    context: int
    batch: int

    def __str__(self) -> str:
        return f"{tokens_text(self.context)} x {self.batch}"


@dataclass(frozen=True)
class Speedup:
    """Decode throughput against the baseline's in the same run: of the medians, and of the extreme repeats."""

    row: ThroughputRow
    ratio: float
    low: float
    high: float


def by_shape(rows: Iterable[ThroughputRow]) -> dict[Shape, dict[str, ThroughputRow]]:
    """Rows by shape and label; a label that comes twice at a shape is told apart by draft length and budget."""
    groups: dict[Shape, list[ThroughputRow]] = {}
    for row in rows:
        groups.setdefault(Shape(row.engine, row.temperature, row.context, row.batch), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (item[0].engine, item[0].context, item[0].batch))
    return {shape: _labelled(group) for shape, group in ordered}


def speedups(side_by_side: dict[str, ThroughputRow]) -> dict[str, Speedup]:
    """Speed of every side of one shape against the baseline; empty where that was not measured."""
    base = side_by_side.get(BASELINE)
    if base is None:
        return {}
    found = {}
    for label, row in side_by_side.items():
        if label != BASELINE:
            each = [speed / base.median for speed in row.tokens_per_second]
            found[label] = Speedup(row, row.median / base.median, min(each), max(each))
    return found


def tokens_text(count: int) -> str:
    """Write a number of tokens the way people do: 512; 16K for 16,384 and for 16,000; 1.5K."""
    if count < 1000:
        return str(count)
    thousands = count / (1024 if count % 512 == 0 else 1000)
    return f"{thousands:.0f}K" if thousands >= 10 or thousands.is_integer() else f"{thousands:.1f}K"


def _labelled(rows: Sequence[ThroughputRow]) -> dict[str, ThroughputRow]:
    seen = Counter(row.policy for row in rows)
    labelled: dict[str, ThroughputRow] = {}
    for row in rows:
        label = row.policy if seen[row.policy] == 1 else f"{row.policy} ({point_of(row)})"
        number = 2
        while label in labelled:
            label, number = f"{row.policy} ({point_of(row)}, {number})", number + 1
        labelled[label] = row
    return labelled
