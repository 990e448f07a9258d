"""Result files and journals: what is stored is what is read, and what is broken is said."""

from __future__ import annotations

import csv
import dataclasses
import errno
import fcntl
import itertools
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from report_cases import ALL

from vegas_bench.results.journal import Journal
from vegas_bench.results.results import (
    AcceptanceRow,
    KernelRow,
    Result,
    ResultError,
    ThroughputRow,
    TuningRow,
    load,
    save,
    save_csv,
)
from vegas_spec.config import VegasConfig
from vegas_spec.environment import environment

ACCEPTANCE = AcceptanceRow(
    policy="vegas",
    config=VegasConfig().to_dict(),
    workload="source",
    kind="source",
    prompt="0: abc.py",
    prompt_tokens=4096,
    generated_tokens=32,
    iterations=8,
    drafts=7,
    accepted_per_iteration=3.5,
    accepted_per_position=[7, 6, 5],
    proposed_per_position=[7, 7, 7],
    draft_kv_share=0.05,
    overlap_by_distance=[0.9, 0.8],
    seconds={"draft": 1.5, "verify": 2},
)
ROWS: dict[str, list[Any]] = {
    "acceptance": [ACCEPTANCE],
    "throughput": [
        ThroughputRow(
            policy="full",
            config={},
            engine="vllm",
            context=32_768,
            batch=16,
            temperature=0,
            tokens_per_second=[700.0, 710.0, 705.0],
        )
    ],
    "kernels": [KernelRow(case="8B 16 x 16K", batch=16, context=16_384, milliseconds={"fa3": 0.26})],
    "tuning": [TuningRow(step=1, varied="kv_budget", value=0.05, num_speculative_tokens=6, kv_budget=0.05)],
}


def result(kind: str) -> Result:
    return Result.of_this_run(kind, "tiny", {"dtype": "float32"}, ROWS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ROWS)
def test_what_is_saved_is_loaded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "new" / "result.json"
    stored = result(kind)
    save(stored, path)
    assert load(path) == stored
    assert [each.name for each in path.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "is not a result"),
        ({"version": 99}, "version 99"),
        ({"kind": "nonsense"}, "known: acceptance"),
        ({"model": 3}, "Expected `str`, got `int` - at `model`"),
        ({"more": 1}, "unknown field 'more'"),
        ({"rows": [{}]}, r"rows\[0\]: Object missing required field `policy`"),
        ({"rows": [3]}, r"rows\[0\]: Expected `object`, got `int`"),
        (
            {"rows": [{**ACCEPTANCE.__dict__, "iterations": 1.5}]},
            r"rows\[0\]: Expected `int`, got `float` - at `iterations`",
        ),
        (
            {"rows": [{**ACCEPTANCE.__dict__, "iterations": True}]},
            r"rows\[0\]: Expected `int`, got `bool` - at `iterations`",
        ),
        (
            {"rows": [{**ACCEPTANCE.__dict__, "recall": "x"}]},
            r"rows\[0\]: Expected `float \| null`, got `str` - at `recall`",
        ),
        (
            {"rows": [{**ACCEPTANCE.__dict__, "accepted_per_position": [1, "2"]}]},
            r"Expected `int`, got `str` - at `accepted_per_position\[1\]`",
        ),
        (
            {"rows": [{**ACCEPTANCE.__dict__, "seconds": {"draft": None}}]},
            r"Expected `float`, got `null` - at `seconds\[...\]`",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**result("acceptance").to_dict(), **change}))
    with pytest.raises(ResultError, match=message):
        load(path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"cannot read .*No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ResultError, match="is not JSON"):
        load(tmp_path / "broken.json")
    with pytest.raises(ResultError, match="cannot write"):
        save(result("kernels"), tmp_path / "broken.json" / "result.json")
    with pytest.raises(ResultError, match="cannot write"):
        save_csv(result("kernels"), tmp_path)


def test_csv_has_a_column_per_field(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    save_csv(result("acceptance"), path)
    [row] = csv.DictReader(path.open())
    assert row["policy"] == "vegas"
    assert row["config.num_speculative_tokens"] == "6"
    assert json.loads(row["accepted_per_position"]) == [7, 6, 5]
    assert row["seconds.verify"] == "2"
    assert row["recall"] == ""


def test_links_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target, pipe = tmp_path / "link.json", tmp_path / "elsewhere" / "target.json", tmp_path / "pipe"
    link.symlink_to(target)
    for _ in range(2):
        save(ALL["tuning"](), link)
        assert link.is_symlink()
        assert load(target) == ALL["tuning"]()
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        save(ALL["tuning"](), pipe)
        assert json.loads(read.result(timeout=20)) == ALL["tuning"]().to_dict()
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "link.json", "pipe", "target.json"]


def test_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    results = [dataclasses.replace(result("kernels"), model=f"model {number}" * 2000) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, results * 20, itertools.repeat(path)))
    assert load(path) in results
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def no_room(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", [save, save_csv])
def test_a_full_disk_leaves_nothing_behind(
    write: Callable[[Result, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_text("kept")
    monkeypatch.setattr(os, "replace", no_room)  # the last moment at which it can fail
    for name in ("old", "new"):
        with pytest.raises(ResultError, match=f"cannot write .*{name}: No space left on device"):
            write(result("kernels"), tmp_path / name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "kept"}


# --- journal --------------------------------------------------------------------------------------------------------


def test_a_journal_goes_on_where_a_killed_run_was(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    run = {"model": "tiny", "gammas": (4, 6)}  # a tuple is a list in JSON
    with Journal(path, run) as journal:
        journal.append("a", {"x": 1})
        journal.append("b", {"x": 2})
    path.write_bytes(path.read_bytes() + b'{"key": "c", "ro')  # killed while writing
    with Journal(path, run) as journal:
        assert journal.rows == {"a": {"x": 1}, "b": {"x": 2}}
        assert "c" not in journal
        journal.append("c", {"x": 3})
    with Journal(path, run) as journal:
        assert list(journal.rows) == ["a", "b", "c"]
        assert journal["c"] == {"x": 3}
        journal.close(remove=True)
    assert not path.exists()


def test_a_run_killed_before_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(b'{"schema": "vegas-jou')
    with Journal(path, {"model": "tiny"}) as journal:
        assert journal.rows == {}
        journal.append("a", 1)
    with Journal(path, {"model": "tiny"}) as journal:
        assert journal.rows == {"a": 1}


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with Journal(path, {"model": "tiny", "gamma": 6}) as journal:
        journal.append("a", 1)
    with pytest.raises(ResultError, match=r"another run \(different: gamma\).*--restart"):
        Journal(path, {"model": "tiny", "gamma": 4})
    with Journal(path, {"model": "tiny", "gamma": 4}, fresh=True) as journal:
        assert journal.rows == {}


def test_what_is_no_journal_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(ResultError, match="is not a journal"):
        Journal(path, {})
    assert path.read_text() == "my notes\n"


def test_a_run_without_measurements_does_not_hold_the_file(tmp_path: Path) -> None:
    """A run that was refused after its journal was begun, then repeated with other options."""
    path = tmp_path / "run.journal"
    with Journal(path, {"max_tokens": 2}):
        pass
    with Journal(path, {"max_tokens": 16}) as journal:
        journal.append("a", 1)
    with Journal(path, {"max_tokens": 16}) as journal:
        assert journal.rows == {"a": 1}


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with Journal(path, {}) as journal:
        journal.append("a", 1)
        for fresh in (False, True):
            with pytest.raises(ResultError, match=r"another run is going on with .*run\.journal; wait for its end"):
                Journal(path, {}, fresh=fresh)
        journal.append("b", 2)
    with Journal(path, {}) as journal:
        assert journal.rows == {"a": 1, "b": 2}


def test_a_full_disk_loses_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "run.journal", tmp_path / "out.json"
    with Journal(path, {}) as journal:
        journal.append("a", 1)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", no_room)
            with pytest.raises(
                ResultError, match=r"journal.*No space left.* is kept in .*\(1 measurement\): make room.* go on"
            ):
                journal.append("b", 2)
        journal.append("c", 3)
        with monkeypatch.context() as full:
            full.setattr(Path, "write_text", no_room)
            kept = r"cannot write .*out\.json: No space .*; what was measured is kept in .*run\.journal \(2 .* repeat"
            with pytest.raises(ResultError, match=kept):
                journal.finish(result("kernels"), out)
    assert [each.name for each in tmp_path.iterdir()] == ["run.journal"]
    with Journal(path, {}) as journal:
        assert set(journal.rows) >= {"a", "c"}
        journal.finish(result("kernels"), out, tmp_path / "out.csv")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.csv", "out.json"]


def test_a_result_is_not_replaced_unasked(tmp_path: Path) -> None:
    path, out = tmp_path / "run.journal", tmp_path / "out.json"
    with Journal(path, {}) as journal:
        journal.refuse_to_replace(out)  # not there
        (tmp_path / "empty.json").touch()
        journal.refuse_to_replace(tmp_path / "empty.json")
    save(result("kernels"), out)
    with Journal(path, {}) as journal, pytest.raises(ResultError, match=r"out\.json is there already.*--restart"):
        journal.refuse_to_replace(out)
    assert not path.exists()
    with Journal(path, {}) as journal:
        journal.append("a", 1)
    with Journal(path, {}) as journal:  # it goes on: its first part was begun knowing of the file, or without it
        journal.refuse_to_replace(out)


def test_where_files_have_no_locks_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with Journal(tmp_path / "run.journal", {}) as journal:
        assert journal.locked
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Journal(tmp_path / "run.journal", {}) as journal:
        assert not journal.locked


def test_a_journal_that_its_run_removes_meanwhile_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.journal"
    flock = fcntl.flock

    def late(*arguments: Any) -> None:
        path.unlink()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ResultError, match=r"run\.journal has just ended; repeat"):
        Journal(path, {})


@pytest.mark.parametrize("row", [{}, {"case": "x", "batch": "1"}, 5, None])
def test_a_row_of_another_form_is_told(tmp_path: Path, row: Any) -> None:
    with Journal(tmp_path / "run.journal", {}) as journal:
        good = KernelRow(case="x", batch=1, context=2, milliseconds={"floor": 0.5})
        journal.append("good", dataclasses.asdict(good))
        journal.append("bad", row)
        assert journal.row("good", KernelRow) == good
        with pytest.raises(ResultError, match=r"run\.journal: .*measurement 'bad'.*--restart"):
            journal.row("bad", KernelRow)


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"[]\n",
        b'{"schema": "vegas-journal"}\n',
        b"[" * 100_000 + b"\n",
        b'{"schema": "vegas-journal", "version": 1, "run": 5}\n',
        b'{"schema": "vegas-journal", "version": 1, "run": {}}\n{"key": []}\n',
        b"\xff\x00\n",
    ],
)
def test_broken_journals_are_told_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(content)
    with pytest.raises(ResultError, match="is not a journal of a run"):
        Journal(path, {})
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("kind", "field", "value", "allowed"),
    [
        ("acceptance", "prompt_tokens", 0, ">= 1"),
        ("throughput", "tokens_per_second", [], "of length >= 1"),
        ("throughput", "tokens_per_second", [1.0, 0.0], "> 0"),
        ("throughput", "tokens_per_second", [float("nan")], "> 0"),
        ("tuning", "tokens_per_second", [], "of length >= 1"),
    ],
)
def test_figures_that_cannot_have_been_measured(kind: str, field: str, value: Any, allowed: str) -> None:
    data = ALL[kind]().to_dict()
    data["rows"][0][field] = value
    with pytest.raises(ResultError, match=rf"here: rows\[0\]: Expected .*{allowed}.* - at `{field}"):
        Result.from_dict(data, "here")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/somewhere/bin/vegas", "bench", "kernels"], "vegas bench kernels"),
        (["benchmarks/x.py", "--out", "a b.json"], "python benchmarks/x.py --out 'a b.json'"),
    ],
)
def test_the_command_repeats_the_run(argv: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert environment()["command"] == said
