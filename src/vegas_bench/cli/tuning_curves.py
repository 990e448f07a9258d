"""The curves of ``vegas tune`` on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vegas_bench.cli import runs
from vegas_spec.config import VegasConfig

if TYPE_CHECKING:
    from vegas_bench.measure.decoding import Decoding
    from vegas_bench.results.results import TuningRow
    from vegas_bench.tune.tuner import Tuner

_TITLES = {
    1: "Step 1: the budget, until acceptance stops growing",
    2: "Step 2: gamma, by decoding speed",
    3: "Step 3: the budget again, by decoding speed",
}
_BAR = 30  # characters of the longest bar


def show(tuner: Tuner, config: VegasConfig, plain: Decoding, out: Path) -> None:
    """Print the three curves, what was chosen, and what it gains."""
    for step, title in _TITLES.items():
        runs.print_table(curve(title, [row for row in tuner.rows if row.step == step], step))
    best = tuner.measured[config.num_speculative_tokens, config.kv_budget]
    default = tuner.measured.get((VegasConfig.num_speculative_tokens, VegasConfig.kv_budget))
    typer.echo(f"{out}: gamma {config.num_speculative_tokens}, budget {config.kv_budget:.1%}")
    typer.echo(f"  {best.speed:.1f} tokens/s: {best.speed / plain.speed:.2f} times plain decoding ({plain.speed:.1f})")
    if best.speed < plain.speed:
        typer.echo("  drafting does not gain here: decode plainly (--policy full), or tune on longer prompts")
    if default is not None:
        typer.echo(f"  {best.speed / default.speed:.2f} times the defaults ({default.speed:.1f})")


def curve(title: str, points: Sequence[TuningRow], step: int) -> Table:
    """Show one step's curve: a line per point, with a bar of what the step looks at."""
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("gamma" if step == 2 else "budget", "accepted", "tokens/s", "predicted"):
        shown.add_column(column, justify="right")
    shown.add_column("accepted" if step == 1 else "tokens/s")
    heights = [_height(point, step) for point in points]
    most = max((height for height in heights if height is not None), default=1.0)
    for point, height in sorted(zip(points, heights, strict=True), key=lambda pair: pair[0].value):
        speeds = point.tokens_per_second
        bar = "" if height is None else "█" * max(1, round(_BAR * height / most)) if most > 0 else ""
        mark = "  <- chosen" if point.chosen else "  ruled out by the cost model" if height is None else ""
        mark = mark or ("  as fast, as far as the repeats tell" if point.tied else "")
        shown.add_row(
            f"{point.value:g}" if step == 2 else f"{point.value:.1%}",
            "" if point.accepted_per_iteration is None else f"{point.accepted_per_iteration:.2f}",
            "" if speeds is None else f"{statistics.median(speeds):.1f} ({min(speeds):.1f}-{max(speeds):.1f})",
            "" if point.predicted_tokens_per_second is None else f"{point.predicted_tokens_per_second:.1f}",
            Text.assemble((bar, "green" if point.chosen else ""), (mark, "bold" if point.chosen else "dim")),
        )
    return shown


def _height(point: TuningRow, step: int) -> float | None:
    if step == 1:
        return point.accepted_per_iteration
    return None if point.tokens_per_second is None else statistics.median(point.tokens_per_second)
