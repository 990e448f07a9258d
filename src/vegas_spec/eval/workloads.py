"""Long prompts that anyone can have: the Python standard library's own source, and JSONL files."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_spec.engine.llm import LLM, InputError, TokensPrompt

QUESTIONS = (
    "Which classes are defined in this source? Describe each in one sentence, and quote the line that defines it.",
    "Explain the most important function of this source step by step, quoting the lines that you explain.",
    "Write a short program that uses this source, then explain which of its functions are called and why.",
    "Write unit tests for three functions of this source.",
    "Repeat the docstrings of this source one by one, each with the name of what it describes.",
)
"""Asked about a piece of source, in turn."""


@dataclass(frozen=True)
class WorkloadPrompt:
    """A prompt of a workload."""

    name: str
    kind: str
    prompt: TokensPrompt


def source_prompt(llm: LLM, num_tokens: int, number: int = 0) -> WorkloadPrompt:
    """Build a chat prompt of exactly `num_tokens`, standard-library source followed by a question about it.

    Parameters
    ----------
    llm : LLM
        Whose tokenizer and chat template are used.
    num_tokens : int
        Of the whole prompt.
    number : int
        Which modules and which question: different numbers begin at different modules.

    Raises
    ------
    InputError
        If `num_tokens` is too small for the question.

    """
    question = QUESTIONS[number % len(QUESTIONS)]

    def encode(text: str) -> list[int]:
        return list(llm.model.tokenizer(text, add_special_tokens=False).input_ids)  # type: ignore[misc]

    mark = "<SOURCE>"
    content = f"{mark}\n```\n\n{question}"
    whole = llm.chat_text([{"role": "user", "content": f"```python\n{content}"}])
    before, after = (encode(part) for part in whole.split(mark))
    room = num_tokens - len(before) - len(after)
    if room < 1:
        raise InputError(f"a source prompt needs at least {num_tokens - room + 1} tokens; got {num_tokens}")
    modules = _modules()
    first = number * 7 % len(modules)
    source: list[int] = []
    names: list[str] = []
    for module in modules[first:] + modules[:first]:
        if len(source) >= room:
            break
        names.append(module.name)
        source += encode(f"# {module.name}\n{module.read_text(encoding='utf-8')}\n")
    tokens = before + source[:room] + after
    return WorkloadPrompt(f"{number}: {', '.join(names[:2])}", "source", {"prompt_token_ids": tokens})


def jsonl_prompts(
    llm: LLM, path: Path, field: str = "text", max_tokens: int | None = None, min_tokens: int = 1
) -> list[WorkloadPrompt]:
    """Read chat prompts from a JSONL file, one object a line, the user's message in `field`.

    A prompt longer than `max_tokens` loses its middle: instructions stand at its start or its end. One shorter than
    `min_tokens` is left out.

    Raises
    ------
    InputError
        If the file cannot be read, or a line has no such field.

    """
    prompts = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            record: dict[str, Any] = json.loads(line)
            text = record[field]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"line {number} of {path} is not a JSON object with a field {field!r}") from error
        tokens = llm.chat_prompt([{"role": "user", "content": text}])["prompt_token_ids"]
        if len(tokens) < min_tokens:
            continue
        if max_tokens is not None and len(tokens) > max_tokens:
            tokens = tokens[: max_tokens // 2] + tokens[-(max_tokens - max_tokens // 2) :]
        name = str(record.get("id", number))
        prompts.append(WorkloadPrompt(name, str(record.get("task", "text")), {"prompt_token_ids": tokens}))
    return prompts


def _lines(path: Path) -> Sequence[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _modules() -> list[Path]:
    """Modules of some length, in an order that is the same everywhere."""
    library = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in library.glob("[a-z]*.py") if path.stat().st_size > 20_000)
