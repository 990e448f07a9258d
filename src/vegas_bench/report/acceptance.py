"""How often drafts were accepted: by policy, by position, by kind of text, by context, by budget and draft length."""

from __future__ import annotations

import math
import statistics

from vegas_bench.report.acceptance_tables import losses_sentence, losses_tables, means_table
from vegas_bench.report.html import Headline
from vegas_bench.report.palette import INK, PAPER, Style, policy_styles
from vegas_bench.report.parts import Block, Plot, legend_above, margin_label, panel, tick_label, token_ticks
from vegas_bench.report.selection import pareto_plots, selection_plots
from vegas_bench.results.results import AcceptanceRow, Result
from vegas_bench.results.summary import REFERENCE, Point, acceptance, by_policy, points, position_rates

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
        margin_label(axes, place, f"{each.mean:.2f}", bold=policy == REFERENCE, fontsize=9)
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
