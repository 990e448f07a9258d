"""A policy that lives outside the package goes through the whole workbench: measured, stored, reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vegas_bench.results.results import load
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

TOY = "toy_policy:EveryOther"


def test_it_is_measured_and_reported(chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "acceptance.json"
    arguments = ["bench", "acceptance", chat_model, "--policies", f"vegas,{TOY},{TOY}:kv_budget=0.2", "--gammas", "3"]
    arguments += ["--workload", "needle:min_tokens=500,max_tokens=600", "--prompts", "2", "--max-tokens", "12"]
    assert run(app, [*arguments, "--kv-budget-min", "8", "--ignore-eos", "--out", str(out)]) == 0
    rows = {row.policy: row for row in load(out).rows}
    assert set(rows) == {"vegas", TOY, f"{TOY}:kv_budget=0.2"}
    assert rows[TOY].drafts > 0
    assert rows[TOY].config["policy"] == TOY
    assert 0.03 < rows[TOY].draft_kv_share < rows[f"{TOY}:kv_budget=0.2"].draft_kv_share < 0.35
    page = tmp_path / "report.html"
    assert run(app, ["report", str(out), "--output", str(page)]) == 0
    assert TOY in page.read_text(encoding="utf-8")


def test_its_speed_is_measured(chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "throughput.json"
    arguments = ["bench", "throughput", chat_model, "--policies", f"full,{TOY}", "--contexts", "300", "--repeats", "1"]
    assert run(app, [*arguments, "--kv-budget-min", "8", "--max-tokens", "40", "--out", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == ["full", TOY]
    assert rows[1]["accepted_per_iteration"] is not None
