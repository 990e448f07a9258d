"""The Python standard library's own source, and a question about it: long prompts that anyone has."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from vegas_spec.engine.encoder import Encoder
from vegas_spec.engine.prompts import InputError, TokensPrompt

QUESTIONS = (
    "Which classes are defined in this source? Describe each in one sentence, and quote the line that defines it.",
    "Explain the most important function of this source step by step, quoting the lines that you explain.",
    "Write a short program that uses this source, then explain which of its functions are called and why.",
    "Write unit tests for three functions of this source.",
    "Repeat the docstrings of this source one by one, each with the name of what it describes.",
)
"""Asked about a piece of source, in turn."""


def source_prompt(encoder: Encoder, num_tokens: int, number: int = 0) -> tuple[str, TokensPrompt]:
    """Build a chat prompt of exactly `num_tokens`, standard-library source followed by a question about it.

    Parameters
    ----------
    encoder : Encoder
        The model's tokenizer and chat template.
    num_tokens : int
        Of the whole prompt.
    number : int
        Which modules and which question: different numbers begin at different modules.

    Returns
    -------
    (str, TokensPrompt)
        The prompt's name, and the prompt.

    Raises
    ------
    InputError
        If `num_tokens` is too small for the question.

    """
    mark = "<SOURCE>"
    before, after = encoder.around(f"```python\n{mark}\n```\n\n{QUESTIONS[number % len(QUESTIONS)]}", mark)
    room = num_tokens - len(before) - len(after)
    if room < 1:
        raise InputError(f"a source prompt needs at least {num_tokens - room + 1} tokens; got {num_tokens}")
    source, names = source_tokens(encoder, room, number)
    tokens = before + source + after
    return f"{number}: {', '.join(names[:2])}", {"prompt_token_ids": tokens}


def source_tokens(encoder: Encoder, count: int, number: int) -> tuple[list[int], list[str]]:
    """Give `count` tokens of modules one after the other, the first chosen by `number`, and the modules' names."""
    tokens: list[int] = []
    names: list[str] = []
    modules = _modules_from(number)
    while len(tokens) < count:
        module = next(modules)
        names.append(module.name)
        tokens += encoder.encode(f"# {module.name}\n{module.read_text(encoding='utf-8')}\n")
    return tokens[:count], names


def _modules_from(number: int) -> Iterator[Path]:
    """Modules round and round, in an order that is the same everywhere."""
    modules = source_modules()
    at = number * 7
    while True:
        yield modules[at % len(modules)]
        at += 1


def source_modules() -> list[Path]:
    """List the modules of some length, in an order that is the same everywhere."""
    library = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in library.glob("[a-z]*.py") if path.stat().st_size > 20_000)
