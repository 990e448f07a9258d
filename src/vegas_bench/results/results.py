"""Result files: what a measurement stores and what a report reads. One JSON object, of one kind, versioned.

``{"schema": "vegas-result", "version": 1, "kind": ..., "model": ..., "command": ..., "environment": {...},
"settings": {...}, "rows": [...]}``, where every row has the fields of the kind's class in `ROWS`. A row is one
measurement; means, intervals and ratios are the reader's to compute.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

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
SOAK_SCHEMA = "vegas-soak"
"""Of what `vegas bench soak` stores, which is no rows."""
VERSION = 1

Class = TypeVar("Class")
Kind = Literal["acceptance", "throughput", "kernels", "tuning"]
Row = AcceptanceRow | ThroughputRow | KernelRow | TuningRow
ROWS: dict[Kind, type[Row]] = {
    "acceptance": AcceptanceRow,
    "throughput": ThroughputRow,
    "kernels": KernelRow,
    "tuning": TuningRow,
}


class ResultError(ValueError):
    """A result file cannot be read or written, or is not what it should be; the message says where and why."""


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

    @property
    def name(self) -> str:
        """The model; of its shapes alone, with random weights, what a reader must not miss."""
        if self.settings.get("imposed_acceptance"):
            return f"{self.model} shapes, acceptance imposed"
        return f"{self.model} shapes, random weights" if self.settings.get("shape") else self.model

    @property
    def hardware(self) -> str:
        """What it was measured on."""
        told = str(self.environment.get("hardware") or "unknown hardware")
        return told.replace(", 1 threads", ", 1 thread")  # as older files have it

    @property
    def conditions(self) -> str:
        """Hardware, dtype, engine and versions, in a line."""
        kernels, versions = self.kind == "kernels", self.environment.get("versions") or {}
        engine = self.settings.get("engine") or next((r.engine for r in self.rows if hasattr(r, "engine")), "embedded")
        parts = [self.hardware, str(self.settings.get("dtype") or "").removeprefix("torch.")]
        parts += ["kernels" if kernels else f"{engine} engine"]
        libraries = ("torch", "triton", "vllm") if kernels else ("torch", "vllm")
        parts += [f"{library} {versions[library]}" for library in libraries if versions.get(library)]
        return ", ".join(filter(None, parts))

    @property
    def commands(self) -> list[str]:
        """What wrote it; several where sides were measured apart and put together."""
        sides = self.settings.get("sides")
        about = sides.values() if isinstance(sides, dict) else ()
        told = [str(side["command"]) for side in about if isinstance(side, dict) and "command" in side]
        return list(dict.fromkeys((*told, self.command)))

    @property
    def notes(self) -> list[str]:
        """What was otherwise than the command says."""
        return list(map(str, (*(self.settings.get("notes") or ()), self.settings.get("note") or "")))

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
            Naming `name` and the first field that is missing, unknown, of the wrong type, or cannot have been measured.

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
        result = read_class(cls, {key: data[key] for key in data if key not in ("schema", "version")}, name)
        rows = [read_class(ROWS[result.kind], row, f"{name}: rows[{at}]") for at, row in enumerate(result.rows)]
        return dataclasses.replace(result, rows=rows)


def read_class(cls: type[Class], data: Any, name: str) -> Class:
    """Build a dataclass from parsed JSON; what has an unknown field, or one that does not fit, is refused.

    Raises
    ------
    ResultError
        Naming `name` and the field.

    """
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if unknown := [key for key in data if key not in known] if isinstance(data, dict) else []:
        raise ResultError(f"{name}: unknown field {unknown[0]!r}; known: {', '.join(known)}")
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise ResultError(f"{name}: {str(error).replace('`$.', '`')}") from None


def load(path: Path) -> Result:
    """Read a result.

    Raises
    ------
    ResultError
        If it cannot be read or is no valid result.

    """
    return Result.from_dict(read_json(path), str(path))


def read_json(path: Path) -> Any:
    """Parse a file.

    Raises
    ------
    ResultError
        If it cannot be read or is not JSON.

    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} is not JSON: {error}") from error


def save(result: Result, path: Path) -> None:
    """Write a result as JSON, as `write_whole` does."""
    write_whole(json.dumps(result.to_dict(), indent=1) + "\n", path)


def save_csv(result: Result, path: Path) -> None:
    """Write the rows as CSV: a column per field, ``field.key`` for a mapping's entries, lists as JSON."""
    flat = [
        {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in flat_row(row).items()}
        for row in result.rows
    ]
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in flat for column in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_whole(text.getvalue(), path)


def write_whole(text: str, path: Path) -> None:
    """Write a text file that appears whole or not at all, whoever else writes it; folders on its way are made.

    Raises
    ------
    ResultError
        If it cannot be written; nothing is left behind.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a link names is replaced, not the link.
        path = path.resolve()
        # A device or a pipe is written to; replaced, it would be gone for everyone.
        special = path.exists() and not path.is_file()
        partial = path if special else path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            # A command may hold file names whose bytes are no text.
            partial.write_text(text, encoding="utf-8", errors="replace", newline="")
            if not special:
                os.replace(partial, path)
        finally:
            if not special:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def flat_row(row: Row) -> dict[str, Any]:
    """Cells of a row by column: a mapping's entries are columns ``field.key``."""
    cells: dict[str, Any] = {}
    for name, value in dataclasses.asdict(row).items():
        cells |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return cells
