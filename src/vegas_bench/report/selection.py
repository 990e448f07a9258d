"""What selecting buys: budget and draft length against acceptance, recall against the oracle, overlap by distance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from vegas_bench.report.palette import INK, MUTED, Style
from vegas_bench.report.parts import Plot, legend_above, panel, tick_label
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import AcceptanceRow
from vegas_bench.results.summary import acceptance, by_policy, is_rival, point_of, points

_Groups = dict[str, list[AcceptanceRow]]


def cache_reads(rows: Sequence[AcceptanceRow]) -> float:
    """Cache reads per committed token, in units of plain decoding's: ``(1 + gamma * share) / (accepted + 1)``.

    Where reading the cache is all that takes time, one over this is the speedup.
    """
    gamma = point_of(rows[0]).gamma
    share = statistics.fmean(row.draft_kv_share for row in rows)
    return (1 + gamma * share) / (acceptance(rows).mean + 1)


def pareto_plots(rows: Sequence[AcceptanceRow], styles: dict[str, Style], prefix: str) -> list[Plot]:
    """Budget and draft length of every policy; nothing where only one point was measured."""
    settings = {
        (policy, point): own
        for point in points(rows)
        for policy, own in by_policy(rows, point).items()
        if is_rival(policy)
    }
    if len({point for _, point in settings}) < 2:
        return []
    figure, axes = panel(3.5)
    places = {key: (100 * cache_reads(own), acceptance(own).mean) for key, own in settings.items()}
    frontier = _frontier(list(places.values()))
    axes.plot(*zip(*frontier, strict=True), color=MUTED.light, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for policy in dict.fromkeys(policy for policy, _ in settings):
        own = [place for (label, _), place in places.items() if label == policy]
        style = styles[policy]
        reads, accepted = zip(*own, strict=True)
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
    recalls = {policy: values for policy, values in recalls.items() if values}
    if recalls:
        figure, axes = panel(1.1 + 0.34 * len(recalls))
        order = sorted(recalls, key=lambda policy: statistics.fmean(recalls[policy]))
        for place, policy in enumerate(order):
            each = bootstrap_mean(recalls[policy])
            axes.barh(place, 100 * each.mean, height=0.55, color=styles[policy].colour.light)
            axes.plot([100 * each.low, 100 * each.high], [place, place], color=INK.light, linewidth=1.2)
        axes.set_yticks(range(len(order)), map(tick_label, order))
        axes.tick_params(axis="y", labelcolor=INK.light)
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("recall against the oracle (%)")
        plots.append(Plot(f"{prefix}-recall", figure, "What an oracle would have chosen and the policy did choose."))
    curves = {policy: _mean_curve([row.overlap_by_distance for row in rows]) for policy, rows in groups.items()}
    curves = {policy: curve for policy, curve in curves.items() if curve}
    if curves:
        figure, axes = panel(3.0)
        for policy, curve in curves.items():
            style = styles[policy]
            shares = [100 * share for share in curve]
            axes.plot(range(1, len(curve) + 1), shares, marker=style.marker, color=style.colour.light, label=policy)
        axes.set_xticks(range(1, max(map(len, curves.values())) + 1))
        axes.set_ylim(0, 103)
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
