"""Where a measurement is written: odd names are names, and what cannot be written is refused before measuring."""

from __future__ import annotations

from pathlib import Path

import pytest

from vegas_bench.results.results import load
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

FLAGS = ["--workload", "needle:min_tokens=300,max_tokens=300", "--prompts", "1", "--max-tokens", "4", "--gammas", "2"]


def test_brackets_in_a_name_are_no_markup(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[").mkdir()
    (tmp_path / "[" / "x].jsonl").write_text('{"text": "hello"}\n')
    file = ["--workload", "jsonl:file=[/x].jsonl"]
    assert run(app, ["bench", "acceptance", chat_model, *FLAGS, *file, "--out", "[/red].json"]) == 0
    shown = capsys.readouterr()
    assert "stored in [/red].json" in shown.err
    assert "jsonl:file=[/x].jsonl: accepted drafts" in shown.out
    assert {row.workload for row in load(tmp_path / "[" / "red].json").rows} == {FLAGS[1], file[1]}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--csv", "out.json"], "--out and --csv must be different files; got out.json for both"),
        (["--csv", "./folder/../out.json"], "--out and --csv must be different files"),
        (["--csv", "."], "--csv must be a file; . is a folder"),
        (["--csv", "notes.txt/a.csv"], "--csv cannot be written: notes.txt/a.csv"),
        (["--out", "x" * 300], "--out cannot be written: File name too long"),
        (["--policies", " ,"], "--policies must be names separated by commas; got ' ,'"),
        (["--batch", "0"], "--batch must be an integer of at least 1; got 0"),
        (["--max-tokens", "5000"], "the output takes all of the model's context; lower --max-tokens"),
    ],
)
def test_what_cannot_be_measured_or_written(
    chat_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    assert run(app, ["bench", "acceptance", chat_model, *FLAGS, "--out", "out.json", *flags]) == 2
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "notes.txt"]


def test_a_tuned_config_does_not_take_the_results_place(chat_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["tune", chat_model, "--out", "a.json", "--result", "a.json"]) == 2
    assert "--out and --result must be different files; got a.json for both" in capsys.readouterr().err


def test_contexts_longer_than_the_models(chat_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["bench", "throughput", chat_model, "--contexts", "1020", "--max-tokens", "16"]) == 2
    assert "--contexts 1020 and --max-tokens 16 together are more than the model's context" in capsys.readouterr().err
