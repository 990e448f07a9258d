"""Result files for a report: those of `vegas bench` and `vegas tune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vegas_bench.results.results import SOAK_SCHEMA, Result, read_json


class ReportError(ValueError):
    """A report cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A result and what to call its file: its name, or its path where another file has the same name."""

    name: str
    result: Result


def load_sources(paths: Sequence[Path]) -> tuple[list[Source], list[str]]:
    """Read result files, and name those that are JSON of something else.

    A folder that holds other measurements too can so be given as a whole; a file that cannot be read, or a result that
    is broken, is an error all the same.

    Raises
    ------
    ReportError
        If no file holds a result.
    ResultError
        If one cannot be read or is broken.

    """
    sources, others = [], []
    paths = list(dict.fromkeys(paths))
    names = Counter(path.name for path in paths)
    for path in paths:
        data = read_json(path)
        if isinstance(data, dict) and data.get("schema", SOAK_SCHEMA) != SOAK_SCHEMA:
            name = path.name if names[path.name] == 1 else str(path)
            sources.append(Source(name, Result.from_dict(data, str(path))))
        else:
            others.append(str(path))
    if not sources:
        raise ReportError(
            f"no result of `vegas bench` or `vegas tune` in {', '.join(others) or 'no file at all'}; "
            "give the JSON files that they wrote"
        )
    return sources, others
