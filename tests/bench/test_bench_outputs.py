"""Where a measurement is written: odd names are names, and what cannot be written is refused before measuring."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

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


def test_a_finished_result_is_not_overwritten(
    chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "acceptance.json"
    command = ["bench", "acceptance", chat_model, *FLAGS, "--out", str(out)]
    assert run(app, [*command, "--policies", "vegas"]) == 0
    stored = out.read_bytes()
    capsys.readouterr()
    assert run(app, [*command, "--policies", "stream"]) == 2
    said = capsys.readouterr().err
    assert "acceptance.json is there already" in said
    assert "--restart" in said
    assert out.read_bytes() == stored
    assert [path.name for path in tmp_path.iterdir()] == ["acceptance.json"]
    assert run(app, [*command, "--policies", "stream", "--restart"]) == 0
    assert [row.policy for row in load(out).rows] == ["stream"]


def test_a_disk_that_is_full_at_the_end(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "acceptance.json"
    command = ["bench", "acceptance", chat_model, *FLAGS, "--out", str(out)]
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", no_room)
        assert run(app, command) == 2
    said = capsys.readouterr().err
    assert "No space left on device; what was measured is kept in " in said
    assert "acceptance.json.journal (1 measurement): make room, then repeat the command" in said
    assert [path.name for path in tmp_path.iterdir()] == ["acceptance.json.journal"]
    assert run(app, command) == 0
    assert "going on with 1 measurement of " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["acceptance.json"]


def test_files_without_locks_are_told_once(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert run(app, ["bench", "acceptance", chat_model, *FLAGS, "--out", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().err.count("files have no locks here") == 1


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
