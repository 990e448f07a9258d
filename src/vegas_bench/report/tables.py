"""Everything that was measured, as tables."""

from __future__ import annotations

import json
from typing import Any

from vegas_bench.report.parts import Table
from vegas_bench.results.results import Result, flat_row

_CONFIG = "config"


def raw_table(result: Result, title: str) -> Table:
    """All rows and fields of a result; a mapping's entries are columns, of the config only those that differ."""
    flat = [flat_row(row) for row in result.rows]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    columns = [column for column in columns if not _is_constant_option(column, flat)]
    columns = [column for column in columns if any(row.get(column) not in (None, "") for row in flat)]
    rows = [[_cell(row.get(column)) for column in columns] for row in flat]
    return Table(title, [column.removeprefix(f"{_CONFIG}.") for column in columns], rows)


def _is_constant_option(column: str, rows: list[dict[str, Any]]) -> bool:
    if not column.startswith(f"{_CONFIG}."):
        return False
    return len({json.dumps(row.get(column)) for row in rows}) == 1


def _cell(value: Any) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return float(f"{value:.5g}")
        case list():
            return " ".join(f"{each:.5g}" if isinstance(each, float) else str(each) for each in value)
        case dict():
            return json.dumps(value)
        case _:
            return value
