"""The curves of the three tuning steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from vegas_bench.report.html import Headline
from vegas_bench.report.palette import BLUE, INK, MUTED, ORANGE, Style
from vegas_bench.report.parts import Block, Chapter, Plot, Table, draw_curve, draw_prediction, legend_above, panel
from vegas_bench.results.results import Result, TuningRow
from vegas_bench.results.wording import count_text

_TITLES = {
    1: "Step 1: the budget at which acceptance stops growing.",
    2: "Step 2: the draft length of the highest throughput at that budget.",
    3: "Step 3: the budget again, by throughput.",
}


def tuning_block(result: Result, prefix: str) -> Block:
    """Everything about one tuning result."""
    rows: list[TuningRow] = result.rows
    steps = sorted({row.step for row in rows})
    plots = [step_plot([row for row in rows if row.step == step], step, prefix) for step in steps]
    return Block(plots, [tuning_table(rows)], [_outcome(rows)])


def tuning_headlines(result: Result) -> list[Headline]:
    """The setting that tuning ended at."""
    chosen = [row for row in result.rows if row.chosen]
    if not chosen:
        return []
    last = max(chosen, key=lambda row: row.step)
    value = f"{count_text(last.num_speculative_tokens, 'draft')}, {100 * last.kv_budget:.3g}\u00a0%"
    return [Headline(value, "tuned draft length and budget")]


def step_plot(rows: Sequence[TuningRow], step: int, prefix: str) -> Plot:
    """Acceptance (step 1) or throughput (steps 2, 3) over what the step varied; the choice is ringed."""
    by_speed = any(row.tokens_per_second or row.predicted_tokens_per_second for row in rows) and step != 1
    share = rows[0].varied == "kv_budget"
    scale = 100 if share else 1
    rows = sorted(rows, key=lambda row: row.value)
    figure, axes = panel(3.0)
    measured, ring = [], []
    for row in rows:
        values = row.tokens_per_second if by_speed else [row.accepted_per_iteration]
        known = [value for value in values or () if value is not None]
        if known:
            measured.append((scale * row.value, statistics.median(known), min(known), max(known)))
            ring += [measured[-1][:2]] if row.chosen else []
    if measured:
        draw_curve(axes, measured, Style(BLUE, "o"), "measured")
    if by_speed:
        predictions = [(scale * row.value, row.predicted_tokens_per_second) for row in rows]
        draw_prediction(axes, predictions, MUTED.light, "predicted")
    if ring:
        marks: dict[str, Any] = {
            "markersize": 12,
            "markerfacecolor": "none",
            "markeredgecolor": ORANGE.light,
            "markeredgewidth": 2,
        }
        axes.plot(*zip(*ring, strict=True), "o", label="chosen", **marks)
    axes.set_xticks([scale * row.value for row in rows], [f"{scale * row.value:.3g}" for row in rows])
    axes.set_xlabel("budget (% of the context)" if share else "drafted tokens per iteration")
    axes.set_ylabel("decode throughput (tokens/s)" if by_speed else "accepted per iteration")
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.tick_params(labelcolor=INK.light)
    legend_above(axes, ("measured", "predicted", "chosen"))
    held = (
        count_text(rows[0].num_speculative_tokens, "draft") if share else f"a budget of {100 * rows[0].kv_budget:.3g} %"
    )
    caption = f"{_TITLES.get(step, f'Step {step}.')} Measured with {held}."
    if by_speed:
        caption += " Hollow: the cost model's prediction, from the phases of the points measured before."
    return Plot(f"{prefix}-step-{step}", figure, caption)


def tuning_table(rows: Sequence[TuningRow]) -> Table:
    """All points of all steps."""
    lines = [
        [
            row.step,
            row.num_speculative_tokens,
            round(100 * row.kv_budget, 2),
            "" if row.accepted_per_iteration is None else round(row.accepted_per_iteration, 2),
            round(statistics.median(row.tokens_per_second), 1) if row.tokens_per_second else "",
            "" if row.predicted_tokens_per_second is None else round(row.predicted_tokens_per_second, 1),
            "chosen" if row.chosen else "",
        ]
        for row in rows
    ]
    columns = ("step", "drafts", "budget (%)", "accepted", "tokens/s", "predicted tokens/s", "")
    return Table("Points of the tuning", columns, lines).without_empty_columns()


def _outcome(rows: Sequence[TuningRow]) -> str:
    ruled_out = sum(row.accepted_per_iteration is None and not row.tokens_per_second for row in rows)
    return f"{ruled_out} of {len(rows)} points were ruled out by the cost model and not measured." if ruled_out else ""


CHAPTER = Chapter(
    "Tuning",
    "Budget and draft length for one workload, by measurement, in three steps.",
    tuning_block,
    tuning_headlines,
)
