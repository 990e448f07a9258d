"""A run's journal: one JSON line per finished measurement, appended as it comes, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from vegas_bench.results.results import Class, Result, ResultError, read_class, save, save_csv
from vegas_bench.results.wording import count_text

if sys.platform != "win32":
    import fcntl

SCHEMA = "vegas-journal"
VERSION = 1
_START = b'{"schema": "vegas-journal"'


class Journal:
    """Measurements of one run by key, on the disk as soon as they are made.

    The first line says what the run is; the others are ``{"key": ..., "row": ...}``. A last line that a killed process
    left unfinished is dropped, since its measurement will be made again.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    run : mapping
        What identifies the run, fit for JSON: a journal of anything else is refused.
    fresh : bool
        Begin anew, whatever is there.

    Attributes
    ----------
    locked : bool
        Whether another process that wants this journal is refused; False where files have no locks.

    Raises
    ------
    ResultError
        If the file cannot be read or written, is no journal, or belongs to another run: an earlier one with
        measurements, or one that is still going on.

    """

    def __init__(self, path: Path, run: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self.locked = False
        self._rows: dict[str, Any] = {}
        header = {"schema": SCHEMA, "version": VERSION, "run": json.loads(json.dumps(run))}
        with contextlib.ExitStack() as on_error:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # To append to, so that nothing is lost before it is known whose journal this is. Without a buffer,
                # which a full disk would leave filled, for the file's end to stumble over.
                self._file: io.FileIO = on_error.enter_context(path.open("a+b", buffering=0))
                self._lock()
                self._begin(header, fresh)
            except OSError as error:
                raise ResultError(f"cannot write the journal {path}: {error.strerror}") from error
            on_error.pop_all()

    def _begin(self, header: dict[str, Any], fresh: bool) -> None:
        """Read what is there; of a run without a measurement nothing is left but its name, and any run may begin."""
        self._file.seek(0)
        content = b"" if fresh else self._file.read()
        *lines, rest = content.split(b"\n")
        if lines:
            self._read(lines, header)
        elif rest and not _line(header).startswith(rest[: len(_START)]):
            raise self._is_none()
        if self._rows:
            # The rest of a line that was cut off would spoil the next one.
            self._file.truncate(len(content) - len(rest))
        else:
            self._file.truncate(0)
            self._write(_line(header))

    def _lock(self) -> None:
        """Keep another process from measuring into the same file; the lock ends with the process, however it ends.

        The journal is its own lock: a file beside it would outlive a killed run.
        """
        if sys.platform == "win32":  # has no such locks
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultError(
                f"another run is going on with {self.path}; wait for its end, or choose another --out"
            ) from error
        except OSError:  # a file system that has no locks
            return
        if not os.fstat(self._file.fileno()).st_nlink:  # between opening and locking, its run ended and removed it
            raise ResultError(f"the run of {self.path} has just ended; repeat the command")
        self.locked = True

    @property
    def rows(self) -> dict[str, Any]:
        """Rows by key, in the order in which they were measured."""
        return dict(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> Any:
        return self._rows[key]

    def row(self, key: str, kind: type[Class]) -> Class:
        """Give a measurement as the dataclass that it was stored from.

        Raises
        ------
        ResultError
            If it has other fields: the journal was written by another version, or by hand.

        """
        try:
            return read_class(kind, self._rows[key], f"{self.path}: measurement {key!r}")
        except ResultError as error:
            raise ResultError(f"{error}; add --restart to measure anew") from None

    def append(self, key: str, row: Any) -> None:
        """Store a measurement; on return it is on the disk."""
        try:
            self._write(_line({"key": key, "row": row}))
        except OSError as error:
            raise ResultError(
                f"cannot write the journal {self.path}: {error.strerror}; {self._kept()} to go on"
            ) from error
        self._rows[key] = row

    def refuse_to_replace(self, out: Path) -> None:
        """Refuse to begin a run whose result would take the place of a file that is there.

        Raises
        ------
        ResultError
            Saying the way out. A run that goes on, or was asked to begin anew, may replace what it is about to store.

        """
        if not self._rows and out.is_file() and out.stat().st_size:
            self.close(remove=True)
            raise ResultError(
                f"{out} is there already, perhaps the result of another run; add --restart to measure anew and replace "
                "it, or choose another file"
            )

    def finish(self, result: Result, out: Path, csv: Path | None = None) -> None:
        """Store the run's result, and delete the journal: it has served.

        Raises
        ------
        ResultError
            If the result cannot be written; the journal stays.

        """
        try:
            save(result, out)
            if csv is not None:
                save_csv(result, csv)
        except ResultError as error:
            raise ResultError(f"{error}; {self._kept()} to store them, without measuring again") from error
        self.close(remove=True)

    def _kept(self) -> str:
        measured = count_text(len(self._rows), "measurement")
        return f"what was measured is kept in {self.path} ({measured}): make room, then repeat the command"

    def close(self, *, remove: bool = False) -> None:
        """Close the file; with `remove`, delete it: the run is over and its result is stored."""
        if remove:  # while it is locked: it may be another run's as soon as it is not
            self.path.unlink(missing_ok=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, content: bytes) -> None:
        while content:
            content = content[self._file.write(content) :]
        os.fsync(self._file.fileno())

    def _read(self, lines: list[bytes], header: dict[str, Any]) -> None:
        try:
            found, *entries = [json.loads(line) for line in lines]
            if found["schema"] != SCHEMA:
                raise KeyError
            rows = {entry["key"]: entry["row"] for entry in entries}
            changed = _differences(dict(found["run"]), header["run"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._is_none() from error
        if rows and found != header:
            raise ResultError(
                f"{self.path} is the journal of another run (different: {changed or 'version'}); repeat that run's "
                "options to go on with it, add --restart to begin anew, or choose another --out"
            )
        self._rows = rows

    def _is_none(self) -> ResultError:
        return ResultError(f"{self.path} is not a journal of a run; move it away or choose another --out")


def _differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    return ", ".join(name for name in {**one, **other} if one.get(name) != other.get(name))


def _line(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"
