"""Result files: what a measurement stores and what a report reads. One JSON object, of one kind, versioned.

``{"schema": "vegas-result", "version": 1, "kind": ..., "model": ..., "command": ..., "environment": {...},
"settings": {...}, "rows": [...]}``, where every row has the fields of the kind's class in `ROWS`. A row is one
measurement; means, intervals and ratios are the reader's to compute.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vegas_bench.results.plain_data import PlainDataError, from_plain
from vegas_bench.results.rows import AcceptanceRow, EngineName, KernelRow, ThroughputRow, TuningRow
from vegas_spec.environment import environment

__all__ = [
    "AcceptanceRow",
    "EngineName",
    "KernelRow",
    "Result",
    "ResultError",
    "ThroughputRow",
    "TuningRow",
    "load",
    "save",
    "save_csv",
]

SCHEMA = "vegas-result"
VERSION = 1

Kind = Literal["acceptance", "throughput", "kernels", "tuning"]


class ResultError(ValueError):
    """A result file cannot be read or written, or is not what it should be; the message says where and why."""


Row = AcceptanceRow | ThroughputRow | KernelRow | TuningRow
ROWS: dict[Kind, type[Row]] = {
    "acceptance": AcceptanceRow,
    "throughput": ThroughputRow,
    "kernels": KernelRow,
    "tuning": TuningRow,
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A stored measurement.

    Attributes
    ----------
    kind : str
        Which rows it has.
    model : str
        Name of the model; for kernels, of the shape.
    command : str
        How to repeat it.
    environment : dict
        ``hardware``, ``python``, ``versions``, ``date``.
    settings : dict
        What all rows share: dtype, device, attention, temperature, most tokens, workloads, ...
    rows : list
        Of the class in `ROWS`.

    """

    kind: Kind
    model: str
    command: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Any]

    @classmethod
    def of_this_run(cls, kind: Kind, model: str, settings: dict[str, Any], rows: Sequence[Row]) -> Result:
        """Build a result with the environment and the command line of this program."""
        about = environment()
        command = about.pop("command")
        return cls(kind=kind, model=model, command=command, environment=about, settings=settings, rows=list(rows))

    def to_dict(self) -> dict[str, Any]:
        """Everything, fit for JSON and for `from_dict`."""
        return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Any, name: str = "result") -> Result:
        """Build a result from parsed JSON, every field checked.

        Raises
        ------
        ResultError
            Naming `name` and the first field that is missing, unknown or of the wrong type.

        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ResultError(f"{name} is not a result of `vegas bench` or `vegas tune`: it lacks 'schema': {SCHEMA!r}")
        if data.get("version") != VERSION:
            raise ResultError(
                f"{name} has version {data.get('version')!r} of the format and this Vegas reads {VERSION}; "
                "measure again, or read it with the Vegas that wrote it"
            )
        kind = data.get("kind")
        if kind not in get_args(Kind):
            raise ResultError(f"{name} has kind {kind!r}; known: {', '.join(get_args(Kind))}")
        fields = {key: value for key, value in data.items() if key not in ("schema", "version")}
        try:
            result: Result = from_plain(cls, fields)
            rows = [from_plain(ROWS[result.kind], row, f"rows[{at}]") for at, row in enumerate(result.rows)]
        except PlainDataError as error:
            raise ResultError(f"{name}: {error}") from None
        for at, row in enumerate(rows):
            if reason := _implausible(row):
                raise ResultError(f"{name}: {reason} in rows[{at}]")
        return dataclasses.replace(result, rows=rows)


def _implausible(row: Row) -> str | None:
    """Say which figure of a row cannot have been measured, of those that reports divide by or take the logarithm of."""
    match row:
        case AcceptanceRow() if row.prompt_tokens < 1:
            return f"prompt_tokens must be at least 1; got {row.prompt_tokens}"
        case ThroughputRow() | TuningRow() if row.tokens_per_second is not None:
            if not row.tokens_per_second or not all(speed > 0 for speed in row.tokens_per_second):
                return f"tokens_per_second must hold figures above 0; got {row.tokens_per_second}"
    return None


def save(result: Result, path: Path) -> None:
    """Write a result as JSON; a file appears whole or not at all.

    Raises
    ------
    ResultError
        If it cannot be written.

    """
    text = json.dumps(result.to_dict(), indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a link names is replaced, not the link.
        path = path.resolve()
        if path.exists() and not path.is_file():
            # A device or a pipe is written to; replaced, it would be gone for everyone.
            path.write_text(text, encoding="utf-8")
        else:
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def load(path: Path) -> Result:
    """Read a result.

    Raises
    ------
    ResultError
        If it cannot be read or is no valid result.

    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} is not JSON: {error}") from error
    return Result.from_dict(data, str(path))


def save_csv(result: Result, path: Path) -> None:
    """Write the rows as CSV: a column per field, ``field.key`` for a mapping's entries, lists as JSON.

    Raises
    ------
    ResultError
        If it cannot be written.

    """
    flat = [
        {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in flat_row(row).items()}
        for row in result.rows
    ]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(flat)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def flat_row(row: Row) -> dict[str, Any]:
    """Cells of a row by column: a mapping's entries are columns ``field.key``."""
    cells: dict[str, Any] = {}
    for name, value in dataclasses.asdict(row).items():
        if isinstance(value, dict):
            cells |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            cells[name] = value
    return cells
