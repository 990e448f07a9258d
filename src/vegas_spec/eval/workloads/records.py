"""Records with named columns, from a JSONL file or the model hub, turned into prompts of the wanted lengths."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vegas_spec.engine.llm import InputError
from vegas_spec.eval.workloads.encoder import Encoder, cut_middle
from vegas_spec.eval.workloads.prompt import Wanted, WorkloadPrompt

Record = dict[str, Any]


def read_jsonl(path: Path, columns: Sequence[str]) -> list[Record]:
    """Read one JSON object a line, each with at least `columns`.

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no such object.

    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            missing = [column for column in columns if column not in record]
        except (ValueError, TypeError) as error:
            raise InputError(f"line {number} of {path} is not a JSON object") from error
        if missing:
            raise InputError(f"line {number} of {path} lacks the field {missing[0]!r}; needed are {', '.join(columns)}")
        records.append(record)
    return records


def read_hub(name: str, hub_id: str, split: str, columns: Sequence[str]) -> list[Record]:
    """Read a data set of the model hub.

    Parameters
    ----------
    name : str
        Of the workload, for messages.
    hub_id, split : str
        Which data set, and which part of it.
    columns : sequence of str
        That each record must have.

    Raises
    ------
    InputError
        If it cannot be had, with what else would do.

    """
    otherwise = (
        f"or give the records as a local JSONL file with the columns {', '.join(columns)}: --workload {name}:file=FILE"
    )
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"workload {name} reads {hub_id} (split {split}) by the package datasets, which is not installed: "
            f"pip install 'vegas-spec[bench]', {otherwise}"
        ) from error
    try:
        records: list[Record] = [dict(record) for record in datasets.load_dataset(hub_id, split=split)]
    except Exception as error:  # no network, a proxy's page, an id that is gone, a format: it raises what it likes
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"workload {name} could not read {hub_id} (split {split}) from the hub: {cause}. Try again where the hub "
            f"can be reached, {otherwise}"
        ) from error
    missing = [column for column in columns if records and column not in records[0]]
    if missing:
        raise InputError(f"{hub_id} has no column {missing[0]!r} any more; {otherwise.removeprefix('or ')}")
    return records


def prompts_from(
    encoder: Encoder,
    wanted: Wanted,
    records: Iterable[Record],
    to_prompt: Callable[[Record], tuple[str, str, str, tuple[str, ...]]],
    source: str,
) -> list[WorkloadPrompt]:
    """Make prompts of the first records that are long enough.

    Parameters
    ----------
    records : iterable of dict
        In their stored order; a seed other than 0 shuffles them.
    to_prompt : callable
        Name, kind, the user's message and the expected answers of a record.
    source : str
        Where the records come from, for messages.

    Raises
    ------
    InputError
        If no record is long enough.

    """
    ordered = list(records)
    if wanted.seed:
        random.Random(wanted.seed).shuffle(ordered)
    prompts: list[WorkloadPrompt] = []
    taken: Counter[str] = Counter()
    for record in ordered:
        name, kind, message, expected = to_prompt(record)
        if len(message.encode()) < wanted.min_tokens // 2:
            continue  # a token is a byte at least; spares the time to count
        tokens = encoder.message(message)
        if len(tokens) < wanted.min_tokens:
            continue
        taken[name] += 1
        name = name if taken[name] == 1 else f"{name} ({taken[name]})"
        prompts.append(WorkloadPrompt(name, kind, cut_middle(tokens, wanted.max_tokens), expected))
        if len(prompts) == wanted.prompts:
            break
    if not prompts:
        raise InputError(
            f"none of the {len(ordered)} records of {source} has at least {wanted.min_tokens} tokens; lower min_tokens"
        )
    return prompts
