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
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vegas_spec.eval.environment import environment
from vegas_spec.eval.plain_data import PlainDataError, from_plain

SCHEMA = "vegas-result"
VERSION = 1

Kind = Literal["acceptance", "throughput", "kernels", "tuning"]
EngineName = Literal["embedded", "vllm"]


class ResultError(ValueError):
    """A result file cannot be read or written, or is not what it should be; the message says where and why."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow:
    """One prompt completed with one policy.

    Attributes
    ----------
    policy : str
        Label of the setting, unique within a file together with `num_speculative_tokens` and `kv_budget` of `config`.
    config : dict
        All options of `VegasConfig`.
    workload, kind, prompt : str
        Name of the workload; what sort of text this is; name of the prompt.
    iterations, drafts : int
        Verifications after the prompt; how many of them had drafts to judge.
    accepted_per_iteration : float
        Accepted drafts per iteration that had drafts.
    accepted_per_position, proposed_per_position : list of int
        How often the draft at distance 1, 2, ... was accepted (with all before it), and how often there was one; the
        latter is empty where it was not recorded.
    draft_kv_share : float
        Share of the cache that draft steps really read.
    recall : float, optional
        Share of each draft step's own best positions, those that an oracle reads, that the policy had selected.
    overlap_by_distance : list of float, optional
        Share that the best positions of two verified rows at distance 1, 2, ... have in common.
    correct : float, optional
        Share of the expected answers that the completion contains, where the workload knows them.
    seconds : dict
        Wall time by phase; prompts of one batch share it.

    """

    policy: str
    config: dict[str, Any]
    workload: str
    kind: str
    prompt: str
    prompt_tokens: int
    generated_tokens: int
    iterations: int
    drafts: int
    accepted_per_iteration: float
    accepted_per_position: list[int]
    proposed_per_position: list[int]
    draft_kv_share: float
    recall: float | None = None
    overlap_by_distance: list[float] | None = None
    correct: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ThroughputRow:
    """Decoding speed of one side at one context, batch and temperature.

    Attributes
    ----------
    policy : str
        Label of the side; the baseline, plain decoding (in vLLM: stock vLLM), is called ``full``.
    config : dict
        All options of `VegasConfig`, or what else the side ran with; empty for stock vLLM.
    context, batch : int
        Prompt tokens per request; requests.
    tokens_per_second : list of float
        Of the whole batch while decoding, one figure per repeat.
    accepted_per_iteration : float, optional
        None for the baseline.
    milliseconds : dict, optional
        Time per iteration by phase.
    selection_overhead : float, optional
        What scores and selection add to a verification, as a share of its time without them.
    predicted_speedup : float, optional
        The cost model's, from measured phases and acceptance, against the baseline.

    """

    policy: str
    config: dict[str, Any]
    engine: EngineName
    context: int
    batch: int
    temperature: float
    tokens_per_second: list[float]
    accepted_per_iteration: float | None = None
    accepted_per_position: list[float] | None = None
    milliseconds: dict[str, float] | None = None
    selection_overhead: float | None = None
    predicted_speedup: float | None = None

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.tokens_per_second)


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """The kernels of one layer at one shape: milliseconds by kernel, bytes of scratch memory by name."""

    case: str
    batch: int
    context: int
    milliseconds: dict[str, float]
    bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One point of one step's curve.

    Attributes
    ----------
    step : int
        1: the budget by acceptance; 2: gamma by speed; 3: the budget again, by speed.
    varied : str
        ``kv_budget`` or ``num_speculative_tokens``.
    value : float
        Of what is varied.
    num_speculative_tokens, kv_budget
        The whole point.
    accepted_per_iteration, tokens_per_second : float, optional
        As measured; None where the cost model had ruled the point out.
    predicted_tokens_per_second : float, optional
        The cost model's.
    chosen : bool
        Whether the step ended here.

    """

    step: int
    varied: str
    value: float
    num_speculative_tokens: int
    kv_budget: float
    accepted_per_iteration: float | None = None
    tokens_per_second: list[float] | None = None
    predicted_tokens_per_second: float | None = None
    milliseconds: dict[str, float] | None = None
    chosen: bool = False


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
        return dataclasses.replace(result, rows=rows)


def save(result: Result, path: Path) -> None:
    """Write a result as JSON; the file appears whole or not at all.

    Raises
    ------
    ResultError
        If it cannot be written.

    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
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
    except ValueError as error:
        raise ResultError(f"{path} is not JSON: {error}") from error
    return Result.from_dict(data, str(path))


def save_csv(result: Result, path: Path) -> None:
    """Write the rows as CSV: a column per field, ``field.key`` for a mapping's entries, lists as JSON.

    Raises
    ------
    ResultError
        If it cannot be written.

    """
    flat = [_flat(dataclasses.asdict(row)) for row in result.rows]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(flat)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            cells[name] = json.dumps(value) if isinstance(value, list) else value
    return cells
