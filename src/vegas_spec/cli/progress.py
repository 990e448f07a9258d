"""Fetch a model and show how far it is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vegas_spec.models import Step, fetch

_SAYS: dict[Step, str] = {
    "waiting": "waiting for another fetch of it",
    "downloading": "downloading",
    "checking": "checking its sha256",
    "converting": "converting (a minute or more)",
}


def fetch_showing_progress(name: str, console: Console | None = None) -> Path:
    """`vegas_spec.models.fetch` with a bar on stderr, or with one line per step where that is not a terminal."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    seen: Step | None = None
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, size="")

        def show(step: Step, done: int, total: int) -> None:
            nonlocal seen
            if step != seen and not console.is_terminal:
                console.print(f"{name}: {_SAYS[step]}", highlight=False)
            seen = step
            # The converted file is written in one go at the end: its bytes say nothing until then.
            counts = step in ("downloading", "checking")
            bar.update(
                task,
                description=f"{name}: {_SAYS[step]}",
                completed=done,
                total=total if counts else None,
                size=f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if counts else "",
            )

        return fetch(name, show)
