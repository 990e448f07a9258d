"""Records with named columns, from a JSONL file or the model hub, turned into prompts of the wanted lengths."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from vegas_bench.workloads.prompt import Wanted, WorkloadPrompt
from vegas_spec.engine.encoder import Encoder, cut_middle
from vegas_spec.engine.prompts import InputError
from vegas_spec.environment import pip_install

Record = dict[str, Any]


def read_jsonl(path: Path, columns: Sequence[str]) -> list[Record]:
    """Read one JSON object a line, each with at least `columns`.

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no such object.

    """
    try:
        # Not by str.splitlines: a JSON string may hold characters, such as U+2028, at which that cuts too.
        lines = path.expanduser().read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InputError(f"line {number} of {path} is not a JSON object")
        if missing := [column for column in columns if column not in record]:
            raise InputError(f"line {number} of {path} lacks the field {missing[0]!r}; needed are {', '.join(columns)}")
        if not _is_text(record):
            raise InputError(f"line {number} of {path} holds half a character (a lone surrogate), which is no text")
        records.append(record)
    return records


def text_of(record: Record, field: str, source: str) -> str:
    """Give a record's text.

    Raises
    ------
    InputError
        If the field holds something else.

    """
    text = record[field]
    if not isinstance(text, str):
        raise InputError(f"{source}: the field {field!r} of every record must be text; got {shorten(repr(text), 80)}")
    return text


def _is_text(record: Record) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


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
            f"{pip_install('bench')}, {otherwise}"
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
        If no record is long enough, or one is not of the form that `to_prompt` reads.

    """
    ordered = list(records)
    if not ordered:
        raise InputError(f"{source} holds no records")
    if wanted.seed:
        random.Random(wanted.seed).shuffle(ordered)
    prompts: list[WorkloadPrompt] = []
    taken: set[str] = set()
    for record in ordered:
        try:
            name, kind, message, expected = to_prompt(record)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            raise InputError(f"{source}: a record is not of the workload's form: {shorten(str(record), 80)}") from error
        if len(message.encode()) < wanted.min_tokens // 2:
            continue  # a token is a byte at least; spares the time to count
        tokens = encoder.message(message)
        if len(tokens) < wanted.min_tokens:
            continue
        again = (f"{name} ({number})" for number in itertools.count(2))
        name = next(each for each in itertools.chain([name], again) if each not in taken)
        taken.add(name)
        cut = max(0, len(tokens) - wanted.max_tokens)
        prompts.append(WorkloadPrompt(name, kind, cut_middle(tokens, wanted.max_tokens), expected, cut))
        if len(prompts) == wanted.prompts:
            break
    if not prompts:
        raise InputError(
            f"none of the {len(ordered)} records of {source} has at least {wanted.min_tokens} tokens; ask for shorter "
            "prompts (--min-prompt-tokens, --contexts, or min_tokens=... after the workload's name)"
        )
    return prompts
