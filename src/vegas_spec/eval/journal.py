"""A run's journal: one JSON line per finished measurement, appended as it comes, so that a killed run can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from vegas_spec.eval.results import ResultError

SCHEMA = "vegas-journal"
VERSION = 1


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

    Raises
    ------
    ResultError
        If the file cannot be read or written, is no journal, or belongs to another run.

    """

    def __init__(self, path: Path, run: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self._rows: dict[str, Any] = {}
        header = {"schema": SCHEMA, "version": VERSION, "run": json.loads(json.dumps(run))}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() and not fresh else []
            if lines:
                self._read(lines, header)
                self._file: BinaryIO = path.open("r+b")
                # The rest of a line that was cut off would spoil the next one.
                self._file.truncate(self._file.seek(sum(len(line) + 1 for line in lines)))
            else:
                self._file = path.open("wb")
                self._write(_line(header))
        except OSError as error:
            raise ResultError(f"cannot write the journal {path}: {error.strerror}") from error

    @property
    def rows(self) -> dict[str, Any]:
        """Rows by key, in the order in which they were measured."""
        return dict(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> Any:
        return self._rows[key]

    def append(self, key: str, row: Any) -> None:
        """Store a measurement; on return it is on the disk."""
        try:
            self._write(_line({"key": key, "row": row}))
        except OSError as error:
            raise ResultError(f"cannot write the journal {self.path}: {error.strerror}") from error
        self._rows[key] = row

    def close(self, *, remove: bool = False) -> None:
        """Close the file; with `remove`, delete it: the run is over and its result is stored."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, lines: list[bytes], header: dict[str, Any]) -> None:
        try:
            found, *entries = [json.loads(line) for line in lines]
            if found["schema"] != SCHEMA:
                raise KeyError
            self._rows = {entry["key"]: entry["row"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{self.path} is not a journal of a run; move it away or choose another --out") from error
        if found != header:
            changed = _differences(found.get("run", {}), header["run"])
            raise ResultError(
                f"{self.path} is the journal of another run (different: {changed or 'version'}); repeat that run's "
                "options to go on with it, add --restart to begin anew, or choose another --out"
            )


def _differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    return ", ".join(name for name in {**one, **other} if one.get(name) != other.get(name))


def _line(data: Any) -> bytes:
    return json.dumps(data).encode() + b"\n"
