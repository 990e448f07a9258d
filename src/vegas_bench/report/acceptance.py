"""How often drafts were accepted: by policy, by position, by kind of text, by context, by budget and draft length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import PAPER, Style, policy_styles
from vegas_bench.report.parts import (
    Block,
    Chapter,
    Plot,
    Table,
    draw_curve,
    draw_shares,
    label_row_beside,
    lay_rows,
    legend_above,
    name_rows,
    panel,
    tick_label,
    token_ticks,
)
from vegas_bench.report.selection import pareto_plots, selection_plots
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import AcceptanceRow, Result
from vegas_bench.results.summary import (
    REFERENCE,
    AcceptanceSummary,
    Point,
    by_policy,
    few_prompts,
    is_rival,
    losses,
    pairs,
    points,
    summary_of,
)
from vegas_bench.results.wording import count_text

_Groups = dict[str, list[AcceptanceRow]]
_Summaries = dict[str, AcceptanceSummary]


def acceptance_block(result: Result, prefix: str) -> Block:
    """Everything about one acceptance result."""
    rows: list[AcceptanceRow] = [row for row in result.rows if row.drafts]
    if not rows:
        return Block(notes=["No prompt had a draft to judge: nothing can be said of acceptance."])
    point = points(rows)[0]
    styles = policy_styles(row.policy for row in rows)
    groups = by_policy(rows, point)
    means = _together(groups)
    plots = [means_plot(groups, means, styles, point, prefix), *positions_plots(means, styles, point, prefix)]
    if len({row.kind for row in rows}) > 1:
        plots.append(kinds_plot(groups, styles, point, prefix))
    plots += context_plots(groups, styles, point, prefix)
    plots += pareto_plots(rows, styles, prefix)
    plots += selection_plots(groups, styles, prefix)
    return Block(
        plots,
        [means_table(means, rows, point), *losses_tables(rows, point)],
        [losses_sentence(rows, point), few_prompts(each.prompts for each in means.values())],
        f"{count_text(len({row.prompt for row in rows}), 'prompt')}, compared at {point}",
    )


def acceptance_headlines(result: Result) -> list[Headline]:
    """The reference's mean, and the share of the cache it read."""
    measured = points(result.rows)
    own = _together(by_policy(result.rows, measured[0])).get(REFERENCE) if measured else None
    if not own:
        return []
    prompts = count_text(own.prompts, "prompt")
    return [
        Headline(f"{own.accepted.mean:.2f} of {measured[0].gamma}", "drafts accepted per iteration", prompts),
        Headline(f"{100 * own.draft_kv_share:.1f} %", "of the cache read by a draft step", prompts),
    ]


def _together(groups: _Groups) -> _Summaries:
    """Sum up the rows of one point."""
    return {policy: summary_of(rows) for policy, rows in groups.items()}


def means_plot(groups: _Groups, means: _Summaries, styles: dict[str, Style], point: Point, prefix: str) -> Plot:
    """One row per policy: its prompts as dots, mean and 95 % interval above them."""
    figure, axes = panel(1.1 + 0.36 * len(means))
    order = sorted(means, key=lambda policy: means[policy].accepted.mean, reverse=True)
    places = lay_rows([1] * len(order))
    for [place], policy in zip(places, order, strict=True):
        each, colour = means[policy].accepted, styles[policy].colour.light
        values = [row.accepted_per_iteration for row in groups[policy]]
        axes.scatter(values, [place] * len(values), s=11, color=colour, alpha=0.35, linewidths=0, clip_on=False)
        axes.plot([each.low, each.high], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        ring: dict[str, Any] = {"markeredgecolor": colour, "markeredgewidth": 2, "markersize": 7}
        axes.plot(each.mean, place, "o", color=PAPER.light, clip_on=False, **ring)
        label_row_beside(axes, place, f"{each.mean:.2f}", policy, 9)
    name_rows(axes, places, list(map(tick_label, order)))
    _accepted_axis(axes, point)
    caption = "Accepted drafts per iteration. Ring: mean over prompts; bar: its 95 % interval; dots: prompts."
    return Plot(f"{prefix}-acceptance", figure, caption)


def _accepted_axis(axes: Axes, point: Point) -> None:
    axes.set_xlim(0, point.gamma + 0.1)
    axes.set_xlabel(f"accepted drafts per iteration, of {point.gamma}")


def positions_plots(means: _Summaries, styles: dict[str, Style], point: Point, prefix: str) -> list[Plot]:
    """Acceptance by distance from the last committed token, where it was counted."""
    curves = {policy: each.by_position for policy, each in means.items() if each.by_position}
    if not curves:
        return []
    figure, axes = panel(3.1)
    for policy, rates in curves.items():
        draw_shares(axes, rates, styles[policy], policy)
    axes.set_xticks(range(1, point.gamma + 1))
    axes.set_xlabel("position of the draft")
    axes.set_ylabel("accepted (%)")
    legend_above(axes, curves)
    caption = "Share of the drafts at each position that were accepted with all before them."
    return [Plot(f"{prefix}-positions", figure, caption)]


def kinds_plot(groups: _Groups, styles: dict[str, Style], point: Point, prefix: str) -> Plot:
    """Means by kind of text."""
    kinds = list(dict.fromkeys(row.kind for rows in groups.values() for row in rows))
    figure, axes = panel(1.3 + 0.42 * len(kinds))
    places = lay_rows([1] * len(kinds))
    for policy, rows in groups.items():
        means = {
            place: statistics.fmean(values)
            for [place], kind in zip(places, kinds, strict=True)
            if (values := [row.accepted_per_iteration for row in rows if row.kind == kind])
        }
        style, size = styles[policy], 8 if policy == REFERENCE else 6
        marks: dict[str, Any] = {"color": style.colour.light, "markersize": size, "zorder": size / 2}
        axes.plot(list(means.values()), list(means), style.marker, linestyle="none", label=policy, **marks)
    name_rows(axes, places, kinds)
    _accepted_axis(axes, point)
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
            each = bootstrap_mean([row.accepted_per_iteration for row in own])
            length = round(statistics.fmean(row.prompt_tokens for row in own))
            curve.append((length, each.mean, each.low, each.high))
        ticks = [length for length, *_ in curve] if len(curve) > len(ticks) else ticks
        draw_curve(axes, curve, styles[policy], policy)
    token_ticks(axes, ticks)
    axes.set_ylim(0, point.gamma + 0.1)
    axes.set_ylabel("accepted per iteration")
    legend_above(axes, groups)
    return [Plot(f"{prefix}-contexts", figure, "Accepted drafts per iteration by prompt length, with 95 % intervals.")]


def means_table(means: _Summaries, rows: Sequence[AcceptanceRow], point: Point) -> Table:
    """Means with intervals, and the paired difference to the reference."""
    compared = pairs(rows, point)
    lines = []
    for policy, each in means.items():
        ahead = bootstrap_mean([pair.difference for pair in compared[policy]]) if policy in compared else None
        lines.append(
            [
                policy,
                round(each.accepted.mean, 2),
                f"{each.accepted.low:.2f} to {each.accepted.high:.2f}",
                round(each.lowest, 2),
                round(each.highest, 2),
                f"{ahead.mean:+.2f} ({ahead.low:+.2f} to {ahead.high:+.2f})" if ahead else "",
                round(100 * each.draft_kv_share, 1),
                each.prompts,
            ]
        )
    columns = ("policy", "mean", "95 % interval", "lowest", "highest", f"{REFERENCE} ahead by", "cache read (%)")
    order = sorted(lines, key=lambda line: -float(str(line[1])))
    return Table("Accepted drafts per iteration", (*columns, "prompts"), order)


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
        [
            pair.other.prompt,
            pair.other.kind,
            pair.other.prompt_tokens,
            pair.other.policy,
            *(round(row.accepted_per_iteration, 2) for row in (pair.other, pair.reference)),
            round(-pair.difference, 2),
        ]
        for pair in lost
    ]
    columns = ("prompt", "kind", "tokens", "policy", "its accepted", f"{REFERENCE}'s", "more by")
    return [Table(f"Prompts on which {REFERENCE} lost", columns, lines)]


CHAPTER = Chapter(
    "Acceptance",
    "How many drafts the full model accepts. Every policy drafts for the same prompts; the output is the full model's, "
    "whoever drafts.",
    acceptance_block,
    acceptance_headlines,
)
