"""What selecting buys: budget and draft length against acceptance, recall against the oracle, overlap by distance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from vegas_bench.report.palette import INK, MUTED, Style
from vegas_bench.report.parts import Plot, draw_shares, lay_rows, legend_above, name_rows, panel, tick_label
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import AcceptanceRow
from vegas_bench.results.summary import by_policy, is_rival, point_of, points

_Groups = dict[str, list[AcceptanceRow]]


def reads_and_accepted(rows: Sequence[AcceptanceRow]) -> tuple[float, float]:
    """Cache reads per committed token in percent of plain decoding's, and accepted drafts per iteration.

    The former is ``(1 + gamma * share) / (accepted + 1)``; were reading the cache all that takes time, one over it
    would be the speedup.
    """
    accepted = statistics.fmean(row.accepted_per_iteration for row in rows)
    share = statistics.fmean(row.draft_kv_share for row in rows)
    return 100 * (1 + point_of(rows[0]).gamma * share) / (accepted + 1), accepted


def pareto_plots(rows: Sequence[AcceptanceRow], styles: dict[str, Style], prefix: str) -> list[Plot]:
    """Budget and draft length of every policy; nothing where only one point was measured."""
    places = {
        (policy, point): reads_and_accepted(own)
        for point in points(rows)
        for policy, own in by_policy(rows, point).items()
        if is_rival(policy)
    }
    if len({point for _, point in places}) < 2:
        return []
    figure, axes = panel(3.5)
    frontier = _frontier(list(places.values()))
    axes.plot(*zip(*frontier, strict=True), color=MUTED.light, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for policy in dict.fromkeys(policy for policy, _ in places):
        reads, accepted = zip(*(place for (label, _), place in places.items() if label == policy), strict=True)
        style = styles[policy]
        axes.scatter(reads, accepted, s=34, marker=style.marker, color=style.colour.light, label=policy)
    for (_, point), place in places.items():
        if place in frontier:
            text = f"{100 * point.budget:.3g} %, {point.gamma}"
            axes.annotate(text, place, xytext=(5, -9), textcoords="offset points", fontsize=7.5, color=MUTED.light)
    axes.margins(0.12)
    axes.set_xlabel("cache read per token, of plain decoding's (%)")
    axes.set_ylabel("accepted per iteration")
    legend_above(axes, styles)
    caption = (
        "Budget and draft length: cache reads per committed token, drafts and verification together, against accepted "
        "drafts. Left and up is better; the dashed line joins the best, each with its budget and draft length."
    )
    return [Plot(f"{prefix}-pareto", figure, caption)]


def selection_plots(groups: _Groups, styles: dict[str, Style], prefix: str) -> list[Plot]:
    """Recall against the oracle and overlap by distance, where they were measured."""
    plots = []
    recalls = {policy: [row.recall for row in rows if row.recall is not None] for policy, rows in groups.items()}
    means = {policy: bootstrap_mean(values) for policy, values in recalls.items() if values}
    if means:
        figure, axes = panel(1.1 + 0.34 * len(means))
        order = sorted(means, key=lambda policy: means[policy].mean, reverse=True)
        places = lay_rows([1] * len(order))
        for [place], policy in zip(places, order, strict=True):
            each = means[policy]
            axes.barh(place, 100 * each.mean, height=0.55, color=styles[policy].colour.light)
            axes.plot([100 * each.low, 100 * each.high], [place, place], color=INK.light, linewidth=1.2)
        name_rows(axes, places, list(map(tick_label, order)))
        axes.set_xlim(0, 100)
        axes.set_xlabel("recall against the oracle (%)")
        plots.append(Plot(f"{prefix}-recall", figure, "What an oracle would have chosen and the policy did choose."))
    curves = {policy: _mean_curve([row.overlap_by_distance for row in rows]) for policy, rows in groups.items()}
    curves = {policy: curve for policy, curve in curves.items() if curve}
    if curves:
        figure, axes = panel(3.0)
        for policy, curve in curves.items():
            draw_shares(axes, curve, styles[policy], policy)
        axes.set_xticks(range(1, max(map(len, curves.values())) + 1))
        axes.set_xlabel("distance between verified rows (tokens)")
        axes.set_ylabel("overlap of their KV sets (%)")
        legend_above(axes, curves)
        caption = "How much the KV sets that two verified rows would choose have in common, by their distance."
        plots.append(Plot(f"{prefix}-overlap", figure, caption))
    return plots


def _frontier(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places that no other beats in both reads (fewer) and acceptance (more), by ascending reads."""
    kept: list[tuple[float, float]] = []
    for place in sorted(places, key=lambda each: (each[0], -each[1])):
        if not kept or place[1] > kept[-1][1]:
            kept.append(place)
    return kept


def _mean_curve(curves: Sequence[list[float] | None]) -> list[float]:
    known = [curve for curve in curves if curve]
    length = min(map(len, known), default=0)
    return [statistics.fmean(curve[place] for curve in known) for place in range(length)]
