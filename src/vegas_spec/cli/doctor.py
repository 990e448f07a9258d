"""``vegas doctor``: what is installed, and what can run here."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from vegas_spec.doctor import Status, run_checks, verdict

_STYLE: dict[Status, str] = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """Say what is installed and what can run here; exit code 1 if something that is needed is missing."""
    checks = run_checks()
    worst = verdict(checks)
    if as_json:
        typer.echo(json.dumps({"status": worst, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        console = Console()
        width = max(len(check.name) for check in checks)
        for check in checks:
            console.print(
                Text(check.status, _STYLE[check.status]), Text(f"{check.name:<{width}}  {check.detail}"), soft_wrap=True
            )
    if worst == "FAIL":
        raise typer.Exit(1)
