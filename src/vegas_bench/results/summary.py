"""What result files say when they are put together: means with intervals, ratios, and who lost where."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vegas_bench.results.intervals import FEW, Interval, bootstrap_mean
from vegas_bench.results.results import AcceptanceRow, ThroughputRow
from vegas_bench.results.wording import count_text, tokens_text
from vegas_spec.config import ConfigError, policy_paths
from vegas_spec.policies import Policy, policy_class

REFERENCE = "vegas"
"""The policy that others are compared with."""

BASELINE = "full"
"""The side that speed is measured against: plain decoding."""


@dataclass(frozen=True)
class Point:
    """Draft length and budget that policies are compared at."""

    gamma: int
    budget: float

    def __str__(self) -> str:
        return f"{count_text(self.gamma, 'draft')}, budget {100 * self.budget:.3g}\u00a0%"


def point_of(row: AcceptanceRow | ThroughputRow) -> Point:
    """Draft length and budget of a row; zeros where it drafts nothing."""
    return Point(row.config.get("num_speculative_tokens", 0), row.config.get("kv_budget", 0.0))


def policy_name(label: str) -> str:
    """Name of the policy that a label is about: ``vegas`` of ``vegas:rows=all``."""
    return label.partition(":")[0].partition(" (")[0]


@functools.cache
def _policy(name: str) -> type[Policy] | None:
    """The policy of that name; None for what is no policy here: n-gram drafts, or those of a package that is not."""
    # Of the known ones only: a file is not to say what is imported.
    if name not in policy_paths():
        return None
    try:
        return policy_class(name)
    except ConfigError:
        return None


def is_rival(label: str) -> bool:
    """Whether a label's policy is a way to draft for less: not an upper bound, not plain decoding."""
    policy = _policy(policy_name(label))
    return policy is None or (policy.speculates and not policy.bound)


def selects(label: str) -> bool:
    """Whether a label's policy leaves entries out, so that its budget has a meaning."""
    policy = _policy(policy_name(label))
    return policy is None or policy.selects


def by_policy(rows: Iterable[AcceptanceRow], point: Point) -> dict[str, list[AcceptanceRow]]:
    """Rows of one point by the policy's label, in order of appearance.

    A policy that reads everything has no budget: it belongs to all points of its draft length. Prompts without drafts
    say nothing of acceptance and are left out.
    """
    groups: dict[str, list[AcceptanceRow]] = {}
    for row in rows:
        own = point_of(row)
        if row.drafts and (own == point or (own.gamma == point.gamma and not selects(row.policy))):
            groups.setdefault(row.policy, []).append(row)
    return groups


def points(rows: Iterable[AcceptanceRow]) -> list[Point]:
    """All points, the one with most policies (and then most rows) first: that is where policies are compared."""
    drafted = [row for row in rows if row.drafts]
    budgeted = [row for row in drafted if selects(row.policy)] or drafted
    count = Counter(point_of(row) for row in budgeted)
    policies = {point: len({row.policy for row in budgeted if point_of(row) == point}) for point in count}
    return sorted(count, key=lambda point: (-policies[point], -count[point]))


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


@dataclass(frozen=True)
class AcceptanceSummary:
    """One setting's rows together.

    Attributes
    ----------
    accepted : Interval
        Mean over prompts of accepted drafts per iteration, with its 95 % bootstrap interval.
    lowest, highest : float
        The hardest and the easiest prompt.
    by_position : list of float
        Share of the drafts at distance 1, 2, ... that were accepted, all prompts pooled; empty where not counted.
    draft_kv_share, recall, correct : float or None
        Means over prompts, where known.

    """

    policy: str
    num_speculative_tokens: int
    kv_budget: float
    prompts: int
    accepted: Interval
    lowest: float
    highest: float
    by_position: list[float]
    draft_kv_share: float
    recall: float | None
    correct: float | None


def summarise(rows: Iterable[AcceptanceRow]) -> list[AcceptanceSummary]:
    """Sum rows up by label, draft length and budget, in order of appearance; prompts without drafts do not count."""
    settings: dict[tuple[str, Point], list[AcceptanceRow]] = {}
    for row in rows:
        if row.drafts:
            settings.setdefault((row.policy, point_of(row)), []).append(row)
    return [summary_of(group) for group in settings.values()]


def summary_of(rows: Sequence[AcceptanceRow]) -> AcceptanceSummary:
    """Sum up the rows of one setting."""
    accepted, point = [row.accepted_per_iteration for row in rows], point_of(rows[0])
    recalls = [row.recall for row in rows if row.recall is not None]
    correct = [row.correct for row in rows if row.correct is not None]
    return AcceptanceSummary(
        policy=rows[0].policy,
        num_speculative_tokens=point.gamma,
        kv_budget=point.budget,
        prompts=len(rows),
        accepted=bootstrap_mean(accepted),
        lowest=min(accepted),
        highest=max(accepted),
        by_position=position_rates(rows),
        draft_kv_share=statistics.fmean(row.draft_kv_share for row in rows),
        recall=statistics.fmean(recalls) if recalls else None,
        correct=statistics.fmean(correct) if correct else None,
    )


def few_prompts(counts: Iterable[int]) -> str:
    """Say that intervals are over few prompts, if the fewest of them are; empty otherwise."""
    fewest = min(counts, default=FEW)
    if fewest >= FEW:
        return ""
    return f"Intervals are over {count_text(fewest, 'prompt')}: so few cover the mean less often than 95 %."


@dataclass(frozen=True)
class Pair:
    """One prompt, completed with a policy and with the reference at the same point."""

    other: AcceptanceRow
    reference: AcceptanceRow

    @property
    def difference(self) -> float:
        """Accepted drafts per iteration, the reference's less the policy's."""
        return self.reference.accepted_per_iteration - self.other.accepted_per_iteration


def pairs(rows: Iterable[AcceptanceRow], point: Point) -> dict[str, list[Pair]]:
    """Pair the reference with each other policy, prompt by prompt."""
    groups = by_policy(rows, point)
    own = {(row.workload, row.prompt, row.prompt_tokens): row for row in groups.pop(REFERENCE, [])}
    found: dict[str, list[Pair]] = {}
    for policy, others in groups.items():
        for row in others:
            if mine := own.get((row.workload, row.prompt, row.prompt_tokens)):
                found.setdefault(policy, []).append(Pair(row, mine))
    return found


def losses(rows: Iterable[AcceptanceRow], point: Point) -> list[Pair]:
    """Prompts on which a rival was accepted more often than the reference, the worst first."""
    lost = [
        pair
        for policy, compared in pairs(rows, point).items()
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
        temperature = f", temperature {self.temperature:g}" if self.temperature else ""
        return f"{tokens_text(self.context)} x {self.batch}{temperature}"


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
