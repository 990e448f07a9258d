"""Means of acceptance with intervals, and the list of prompts on which the reference lost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from vegas_bench.report.parts import Table
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import AcceptanceRow
from vegas_bench.results.summary import REFERENCE, Point, acceptance, is_rival, losses, pairs

_Groups = dict[str, list[AcceptanceRow]]


def means_table(rows: Sequence[AcceptanceRow], groups: _Groups, point: Point) -> Table:
    """Means with intervals, and the paired difference to the reference."""
    compared = pairs(rows, point)
    lines = []
    for policy, own in groups.items():
        each = acceptance(own)
        ahead = bootstrap_mean([pair.difference for pair in compared[policy]]) if policy in compared else None
        lines.append(
            [
                policy,
                round(each.mean, 2),
                f"{each.low:.2f} to {each.high:.2f}",
                round(min(row.accepted_per_iteration for row in own), 2),
                round(max(row.accepted_per_iteration for row in own), 2),
                f"{ahead.mean:+.2f} ({ahead.low:+.2f} to {ahead.high:+.2f})" if ahead else "",
                round(100 * statistics.fmean(row.draft_kv_share for row in own), 1),
                len(own),
            ]
        )
    columns = (
        "policy",
        "mean",
        "95 % interval",
        "lowest",
        "highest",
        f"{REFERENCE} ahead by",
        "cache read (%)",
        "prompts",
    )
    return Table("Accepted drafts per iteration", columns, sorted(lines, key=lambda line: -float(str(line[1]))))


def losses_sentence(rows: Sequence[AcceptanceRow], point: Point) -> str:
    """On how many prompts which policy beat the reference."""
    compared = {name: each for name, each in pairs(rows, point).items() if is_rival(name)}
    if not compared:
        return ""
    parts = [f"{policy} on {sum(p.difference < 0 for p in each)} of {len(each)}" for policy, each in compared.items()]
    return f"Prompts on which another policy was accepted more often than {REFERENCE}: {', '.join(parts)}."


def losses_tables(rows: Sequence[AcceptanceRow], point: Point) -> list[Table]:
    """Every prompt on which the reference lost, by name."""
    lost = losses(rows, point)
    if not lost:
        return []
    lines = [
        [p.prompt, p.kind, p.prompt_tokens, p.policy, round(p.other, 2), round(p.reference, 2), round(-p.difference, 2)]
        for p in lost
    ]
    columns = ("prompt", "kind", "tokens", "policy", "its accepted", f"{REFERENCE}'s", "more by")
    return [Table(f"Prompts on which {REFERENCE} lost", columns, lines)]
