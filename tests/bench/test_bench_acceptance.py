"""``vegas bench acceptance`` on a tiny model: what it measures, stores, goes on with and refuses."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest

from vegas_bench.measure import acceptance as bench_acceptance
from vegas_bench.measure.variants import variants
from vegas_bench.results.intervals import bootstrap_mean
from vegas_bench.results.results import AcceptanceRow, load
from vegas_bench.results.summary import summarise
from vegas_bench.workloads import Encoder, parse
from vegas_spec import LLM, SamplingParams
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.config import ConfigError, VegasConfig

WORKLOAD = ["--workload", "needle:min_tokens=500,max_tokens=600", "--prompts", "2", "--max-tokens", "12"]
SETTINGS = [
    "--policies",
    "vegas,dense,vegas:rows=all",
    "--budgets",
    "0.02,0.05",
    "--gammas",
    "3",
    "--kv-budget-min",
    "8",
]


def bench(model: str, out: Path, *flags: str) -> int:
    return run(app, ["bench", "acceptance", model, *WORKLOAD, *SETTINGS, "--out", str(out), *flags])


def test_rows_are_what_the_engine_counts(chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "acceptance.json"
    assert bench(chat_model, out, "--csv", str(tmp_path / "a.csv"), "--ignore-eos") == 0
    result = load(out)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.csv", "acceptance.json"]
    assert len(result.rows) == 5 * 2  # dense has no budget
    assert result.settings["workloads"] == [WORKLOAD[1]]
    rows: dict[tuple[str, float], list[AcceptanceRow]] = {}
    for row in result.rows:
        rows.setdefault((row.policy, row.config["kv_budget"]), []).append(row)
    assert list(rows) == [
        ("vegas", 0.02),
        ("vegas", 0.05),
        ("dense", 1.0),
        ("vegas:rows=all", 0.02),
        ("vegas:rows=all", 0.05),
    ]
    assert all(row.accepted_per_position == row.proposed_per_position for row in rows["dense", 1.0])
    assert all(row.draft_kv_share == 1 for row in rows["dense", 1.0])

    llm = LLM(chat_model, num_speculative_tokens=3, kv_budget=0.02, kv_budget_min=8)
    prompts = parse(WORKLOAD[1]).build(Encoder.of(llm), 1000, prompts=2)
    outputs = llm.generate(
        [each.prompt for each in prompts], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    )
    for prompt, output, row in zip(prompts, outputs, rows["vegas", 0.02], strict=True):
        assert row.prompt == prompt.name
        assert row.prompt_tokens == len(output.prompt_token_ids)
        assert row.generated_tokens == 12
        assert (row.iterations, row.drafts) == (output.stats.iterations, output.stats.drafts)
        assert row.accepted_per_position == output.stats.accepted_per_position
        assert row.proposed_per_position == output.stats.drafted_per_position
        assert row.draft_kv_share == output.stats.draft_kv_share
        assert row.correct == prompt.correct(output.outputs[0].text)
        assert row.config == llm.config.to_dict()
    assert len(list(csv.DictReader((tmp_path / "a.csv").open()))) == len(result.rows)
    shown = capsys.readouterr().out
    assert "accepted drafts per iteration" in shown
    assert "vegas:rows=all" in shown


def test_a_killed_run_goes_on_where_it_was(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, measured = tmp_path / "acceptance.json", list[str]()
    honest = bench_acceptance.acceptance_row

    def interrupted(*arguments: Any) -> AcceptanceRow:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append("row")
        return honest(*arguments)

    monkeypatch.setattr(bench_acceptance, "acceptance_row", interrupted)
    assert bench(chat_model, out) == 130
    assert "3 measurements are kept" in capsys.readouterr().err.replace("\n", " ")
    assert not out.exists()
    assert run(app, ["bench", "acceptance", chat_model, *WORKLOAD, "--out", str(out), "--temperature", "1"]) == 2
    assert "another run (different: temperature" in capsys.readouterr().err
    for flag in ("--max-tokens", "--max-prompt-tokens"):  # of outputs, and of prompts
        assert bench(chat_model, out, flag, "400") == 2
        assert f"another run (different: {flag[2:].replace('-', '_')})" in capsys.readouterr().err.replace("\n", " ")

    def counted(*arguments: Any) -> AcceptanceRow:
        measured.append("row")
        return honest(*arguments)

    monkeypatch.setattr(bench_acceptance, "acceptance_row", counted)
    assert bench(chat_model, out, "--json") == 0
    assert len(measured) == 5 * 2
    shown, said = capsys.readouterr()
    assert "going on with 3 measurements" in said
    assert json.loads(shown)["rows"] == json.loads(out.read_text())["rows"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policies", "vgas"], "policy must be one of .*did you mean 'vegas'"),
        (["--policies", "vegas:row=all"], "unknown option 'row'; did you mean 'rows'"),
        (["--policies", "vegas:rows"], "name:option=value"),
        (["--policies", "vegas:kv_budget_min=few"], "kv_budget_min must be a whole number"),
        (["--policies", "full"], "drafts nothing"),
        (["--budgets", "5%"], "--budgets must be numbers separated by commas; got '5%'"),
        (["--budgets", "2"], "kv_budget must be"),
        (["--gammas", ","], "--gammas must be whole numbers"),
        (["--workload", "nothing"], "workload must be one of"),
        (["--attention", "other"], "attention must be one of"),
        (["--max-prompt-tokens", "3"], "min_tokens must be at most max_tokens|needs at least|needles needs"),
    ],
)
def test_bad_settings_are_refused(
    chat_model: str, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "acceptance.json"
    assert run(app, ["bench", "acceptance", chat_model, "--max-tokens", "8", "--out", str(out), *flags]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(message, said), said
    assert not out.exists()


def test_equal_budgets_are_measured_once_and_cut_prompts_are_said(
    chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "acceptance.json", tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "many words " * 200}))
    flags = ["--workload", f"jsonl:file={file}", "--max-tokens", "8", "--gammas", "3", "--out", str(out)]
    assert run(app, ["bench", "acceptance", chat_model, *flags, "--budgets", "0.05,0.2,0.5"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "a budget of 0.2 comes to the same entries as 0.05 here (kv_budget_min is 256)" in said
    assert "1 of 1 texts are longer than 1016 tokens and lost their middle" in said
    result = load(out)
    assert [row.config["kv_budget"] for row in result.rows] == [0.05, 0.5]
    assert len(result.settings["notes"]) == 2


def test_settings_of_a_run() -> None:
    def keys(*arguments: Any, **options: Any) -> list[str]:
        return [variant.key for variant in variants(*arguments, **options)]

    assert keys(["vegas"], [0.1, 0.2], [4, 6]) == [
        "vegas gamma=4 budget=0.1",
        "vegas gamma=4 budget=0.2",
        "vegas gamma=6 budget=0.1",
        "vegas gamma=6 budget=0.2",
    ]
    assert keys(["vegas"], [0.1, 0.2], [4, 6], one_at_a_time=True) == [
        "vegas gamma=4 budget=0.1",
        "vegas gamma=4 budget=0.2",
        "vegas gamma=6 budget=0.1",
    ]
    assert keys(["dense", "full"], [0.1, 0.2], [4]) == ["dense gamma=4", "full"]
    assert keys(["vegas:kv_budget=0.3:rows=all"], [0.1, 0.2]) == ["vegas:kv_budget=0.3:rows=all gamma=6 budget=0.3"]
    [variant] = variants(["vegas:kv_budget_max=400:score=logit"], kv_budget_min=100)
    assert variant.config == VegasConfig(kv_budget_min=100, kv_budget_max=400, score="logit")
    with pytest.raises(ConfigError, match="kv_budget_max must be"):
        variants(["vegas:kv_budget_max=50"], kv_budget_min=100)


# --- figures --------------------------------------------------------------------------------------------------------


def a_row(accepted: list[int], proposed: list[int], drafts: int) -> AcceptanceRow:
    return AcceptanceRow(
        policy="vegas",
        config=VegasConfig(num_speculative_tokens=2).to_dict(),
        workload="source",
        kind="source",
        prompt="p",
        prompt_tokens=100,
        generated_tokens=10,
        iterations=drafts + 1,
        drafts=drafts,
        accepted_per_iteration=sum(accepted) / drafts if drafts else 0.0,
        accepted_per_position=accepted,
        proposed_per_position=proposed,
        draft_kv_share=0.1,
        correct=0.5,
    )


def test_a_summary_is_over_prompts_that_drafted() -> None:
    [summary] = summarise([a_row([4, 2], [4, 4], 4), a_row([1, 0], [2, 1], 2), a_row([0, 0], [0, 0], 0)])
    assert summary.prompts == 2
    assert summary.accepted.mean == pytest.approx((1.5 + 0.5) / 2)
    assert (summary.lowest, summary.highest) == (0.5, 1.5)
    assert summary.by_position == [5 / 6, 2 / 5]
    assert summary.recall is None
    assert summary.correct == 0.5


def test_the_bootstrap_covers_a_known_mean_about_as_often_as_it_says() -> None:
    draws = numpy.random.default_rng(1).normal(3.0, 1.0, size=(300, 25))
    intervals = [bootstrap_mean(list(values), resamples=400, seed=at) for at, values in enumerate(draws)]
    covered = sum(each.low <= 3.0 <= each.high for each in intervals) / len(intervals)
    assert 0.89 <= covered <= 0.98
    assert bootstrap_mean([2.0]) == bootstrap_mean([2.0, 2.0, 2.0])
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_mean([])


def test_a_trace_tells_recall_and_overlap(chat_model: str, tmp_path: Path) -> None:
    out = tmp_path / "acceptance.json"
    settings = ["--policies", "vegas,oracle,dense", "--gammas", "3", "--kv-budget-min", "8", "--trace", "2"]
    assert run(app, ["bench", "acceptance", chat_model, *WORKLOAD, *settings, "--out", str(out)]) == 0
    rows = load(out).rows
    for row in rows:
        assert len(row.overlap_by_distance) == 3
        assert all(0 <= share <= 1 for share in row.overlap_by_distance)
    recalls = {row.policy: row.recall for row in rows}
    assert recalls["oracle"] == recalls["dense"] == pytest.approx(1)
    assert 0 < recalls["vegas"] < 1
