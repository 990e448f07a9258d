"""Prompts on the command line: the flags that give one, and how it is read."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vegas_spec.cli.errors import UsageError
from vegas_spec.config import check_int

if TYPE_CHECKING:
    from vegas_spec.engine.llm import LLM

Dash = Annotated[str | None, typer.Argument(metavar="[-]", help="- reads the prompt from standard input.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="The prompt itself.")]
PromptFile = Annotated[str | None, typer.Option("--prompt-file", help="A text file that holds the prompt.")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="Use the model's chat template (default: if it has one).")
]


def read_prompt(prompt: str | None, prompt_file: str | None, dash: str | None) -> str:
    """Take the prompt from the one place that was given: a flag, a file, or standard input.

    Raises
    ------
    UsageError
        If none or several were given, or what was given is empty or cannot be read as text.

    """
    if dash is not None and dash != "-":
        raise UsageError(f"a prompt is given with --prompt or --prompt-file, or - for standard input; got {dash!r}")
    given = [place for place in (prompt, prompt_file, dash) if place is not None]
    if len(given) != 1:
        raise UsageError(
            f"give one prompt: --prompt TEXT, --prompt-file FILE, or - for standard input; got {len(given)}"
        )
    if prompt is not None:
        return check_text(prompt)
    if dash == "-" or prompt_file == "-":
        return check_text(_read_stdin())
    return check_text(read_text(Path(str(prompt_file))))


def check_text(text: str) -> str:
    """Give a prompt back, or refuse it if it is empty or holds bytes that are no text."""
    if not text:
        raise UsageError("the prompt is empty; it needs at least one token")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is not UTF-8 text (character {error.start})") from error
    return text


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("standard input is closed; give the prompt with --prompt or --prompt-file")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Whatever the locale, as for a file; and with the ends of lines that it has.
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file with the ends of lines that it has, or say in one sentence why not."""
    try:
        return path.expanduser().read_bytes().decode("utf-8-sig")  # a byte order mark is no part of the text
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def make_prompt(llm: LLM, text: str, chat: bool | None) -> Any:
    """Turn text into a prompt: by the chat template if wanted, or if not said otherwise and the model has one."""
    if chat is None:
        chat = llm.has_chat_template
    return llm.chat_prompt([{"role": "user", "content": text}]) if chat else text


def make_source_prompt(llm: LLM, num_tokens: int, number: int = 0) -> tuple[str, Any]:
    """Give the name and the tokens of a built-in prompt: source code, and a question about it."""
    from vegas_spec.engine.encoder import Encoder
    from vegas_spec.engine.source_text import source_prompt

    # Before millions of tokens are made that no model reads.
    check_int("--prompt-tokens", num_tokens, 1, llm.max_model_len - 1)
    return source_prompt(Encoder.of(llm), num_tokens, number)
