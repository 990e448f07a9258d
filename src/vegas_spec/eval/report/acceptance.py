"""How often drafts were accepted: by policy, by position, by kind of text, by context, by budget and draft length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from vegas_spec.eval.intervals import bootstrap_mean
from vegas_spec.eval.report.html import Headline
from vegas_spec.eval.report.palette import INK, MUTED, PAPER, Style, policy_styles
from vegas_spec.eval.report.parts import Block, Plot, Table, legend_above, panel, tick_label, token_ticks
from vegas_spec.eval.results import AcceptanceRow, Result
from vegas_spec.eval.summary import (
    REFERENCE,
    Point,
    acceptance,
    by_policy,
    is_rival,
    losses,
    pairs,
    point_of,
    points,
    position_rates,
)

_Groups = dict[str, list[AcceptanceRow]]


def acceptance_block(result: Result, prefix: str, heading: str, conditions: str) -> Block:
    """Everything about one acceptance result."""
    rows: list[AcceptanceRow] = [row for row in result.rows if row.drafts]
    if not rows:
        return Block(heading, conditions, notes=["No prompt had a draft to judge: nothing can be said of acceptance."])
    point = points(rows)[0]
    styles = policy_styles(row.policy for row in rows)
    groups = by_policy(rows, point)
    plots = [means_plot(groups, styles, point, prefix), *positions_plots(groups, styles, point, prefix)]
    if len({row.kind for row in rows}) > 1:
        plots.append(kinds_plot(groups, styles, point, prefix))
    plots += context_plots(groups, styles, point, prefix)
    plots += pareto_plots(rows, styles, prefix)
    plots += selection_plots(groups, styles, prefix)
    return Block(
        heading,
        f"{conditions}; {len({row.prompt for row in rows})} prompts, compared at {point}",
        plots,
        [means_table(rows, groups, point), *losses_tables(rows, point)],
        [losses_sentence(rows, point)],
    )


def acceptance_headlines(result: Result, conditions: str) -> list[Headline]:
    """The reference's mean, and the share of the cache it read."""
    measured = points(result.rows)
    own = by_policy(result.rows, measured[0]).get(REFERENCE) if measured else None
    if not own:
        return []
    point, share = measured[0], statistics.fmean(row.draft_kv_share for row in own)
    return [
        Headline(f"{acceptance(own).mean:.2f} of {point.gamma}", "drafts accepted per iteration", conditions),
        Headline(f"{100 * share:.1f} %", "of the cache read by a draft step", conditions),
    ]


def means_plot(groups: _Groups, styles: dict[str, Style], point: Point, prefix: str) -> Plot:
    """One row per policy: its prompts as dots, mean and 95 % interval above them."""
    figure, axes = panel(1.1 + 0.36 * len(groups))
    order = sorted(groups, key=lambda policy: acceptance(groups[policy]).mean)
    for place, policy in enumerate(order):
        each, colour = acceptance(groups[policy]), styles[policy].colour.light
        values = [row.accepted_per_iteration for row in groups[policy]]
        axes.scatter(values, [place] * len(values), s=11, color=colour, alpha=0.35, linewidths=0, clip_on=False)
        axes.plot([each.low, each.high], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(
            each.mean,
            place,
            "o",
            color=PAPER.light,
            markeredgecolor=colour,
            markeredgewidth=2,
            markersize=7,
            clip_on=False,
        )
        axes.annotate(
            f"{each.mean:.2f}",
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            fontweight="bold" if policy == REFERENCE else "normal",
        )
    axes.set_yticks(range(len(order)), map(tick_label, order))
    axes.tick_params(axis="y", labelcolor=INK.light)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlim(0, point.gamma + 0.1)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"accepted drafts per iteration, of {point.gamma}")
    caption = "Accepted drafts per iteration. Ring: mean over prompts; bar: its 95 % interval; dots: prompts."
    return Plot(f"{prefix}-acceptance", figure, caption)


def positions_plots(groups: _Groups, styles: dict[str, Style], point: Point, prefix: str) -> list[Plot]:
    """Acceptance by distance from the last committed token, where it was counted."""
    curves = {policy: rates for policy, rows in groups.items() if (rates := position_rates(rows))}
    if not curves:
        return []
    figure, axes = panel(3.1)
    for policy, rates in curves.items():
        style = styles[policy]
        axes.plot(
            range(1, len(rates) + 1),
            [100 * rate for rate in rates],
            marker=style.marker,
            color=style.colour.light,
            label=policy,
            zorder=3 if policy == REFERENCE else 2,
        )
    axes.set_xticks(range(1, point.gamma + 1))
    axes.set_ylim(0, 103)
    axes.set_xlabel("position of the draft")
    axes.set_ylabel("accepted (%)")
    legend_above(axes, groups)
    caption = "Share of the drafts at each position that were accepted with all before them."
    return [Plot(f"{prefix}-positions", figure, caption)]


def kinds_plot(groups: _Groups, styles: dict[str, Style], point: Point, prefix: str) -> Plot:
    """Means by kind of text."""
    kinds = list(dict.fromkeys(row.kind for rows in groups.values() for row in rows))
    figure, axes = panel(1.3 + 0.42 * len(kinds))
    for place, kind in enumerate(reversed(kinds)):
        for policy, rows in groups.items():
            values = [row.accepted_per_iteration for row in rows if row.kind == kind]
            if values:
                style = styles[policy]
                label = policy if place == 0 else None
                axes.plot(
                    statistics.fmean(values),
                    place,
                    style.marker,
                    color=style.colour.light,
                    markersize=8 if policy == REFERENCE else 6,
                    label=label,
                    linestyle="none",
                    zorder=4 if policy == REFERENCE else 3,
                )
    axes.set_yticks(range(len(kinds)), reversed(kinds))
    axes.tick_params(axis="y", labelcolor=INK.light)
    axes.set_ylim(-0.6, len(kinds) - 0.4)
    axes.set_xlim(0, point.gamma + 0.1)
    axes.set_xlabel(f"accepted drafts per iteration, of {point.gamma}")
    legend_above(axes, groups)
    return Plot(f"{prefix}-kinds", figure, "Mean accepted drafts per iteration by kind of text.")


def context_plots(groups: _Groups, styles: dict[str, Style], point: Point, prefix: str) -> list[Plot]:
    """Means by prompt length, in half octaves; nothing where all prompts are about as long."""

    def octave(row: AcceptanceRow) -> int:
        return round(2 * math.log2(row.prompt_tokens))

    lengths = [row.prompt_tokens for rows in groups.values() for row in rows]
    if max(lengths) < 1.8 * min(lengths):
        return []
    figure, axes = panel(3.1)
    ticks: list[int] = []
    for policy, rows in groups.items():
        curve = []
        for step in sorted({octave(row) for row in rows}):
            own = [row for row in rows if octave(row) == step]
            length = round(statistics.fmean(row.prompt_tokens for row in own))
            curve.append((length, acceptance(own)))
        ticks = [length for length, _ in curve] if len(curve) > len(ticks) else ticks
        style = styles[policy]
        axes.errorbar(
            [length for length, _ in curve],
            [each.mean for _, each in curve],
            yerr=[[e.mean - e.low for _, e in curve], [e.high - e.mean for _, e in curve]],
            marker=style.marker,
            color=style.colour.light,
            elinewidth=1,
            label=policy,
            zorder=3 if policy == REFERENCE else 2,
        )
    token_ticks(axes, ticks)
    axes.set_ylim(0, point.gamma + 0.1)
    axes.set_ylabel("accepted per iteration")
    legend_above(axes, groups)
    return [Plot(f"{prefix}-contexts", figure, "Accepted drafts per iteration by prompt length, with 95 % intervals.")]


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
