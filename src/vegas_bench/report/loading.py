"""Result files for a report: those of `vegas bench` and `vegas tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_bench.results.results import Result, ResultError


class ReportError(ValueError):
    """A report cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A result and the name of its file."""

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
    for path in dict.fromkeys(paths):
        data = _parse(path)
        if isinstance(data, dict) and "schema" in data:
            sources.append(Source(path.name, Result.from_dict(data, str(path))))
        else:
            others.append(str(path))
    if not sources:
        raise ReportError(
            f"no result of `vegas bench` or `vegas tune` in {', '.join(others) or 'no file at all'}; "
            "give the JSON files that they wrote"
        )
    return sources, others


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} is not JSON: {error}") from error
