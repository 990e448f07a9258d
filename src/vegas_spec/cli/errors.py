"""What went wrong, for the person at the terminal: one sentence on stderr, and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

import typer
from typer.exceptions import TyperException

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes: that of usage errors, as in click; 128 and the number of SIGINT, as in shells."""

COMMANDS = "vegas_spec.commands"
"""Entry points by which other packages bring subcommands."""


class UsageError(ValueError):
    """What was asked on the command line cannot be done; the message says why and what can."""


def is_for_the_user(error: Exception) -> bool:
    """Whether the message is a sentence for the user.

    Exception classes of this package and of those that bring subcommands are; all others are bugs.
    """
    own = {"vegas_spec", *(command.module.partition(".")[0] for command in entry_points(group=COMMANDS))}
    return type(error).__module__.partition(".")[0] in own


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Bad input, of whatever kind, is one sentence on stderr and exit code 2; Ctrl-C is 130. Output for which there is
    no room is bad input too. An unexpected exception is a fault of ours and keeps its traceback.
    """
    if "--help" in (sys.argv if arguments is None else arguments):
        from typer import rich_utils  # a fifth of a second

        # Two spaces between the columns would cut the longest flag on a terminal of 80.
        rich_utils.STYLE_OPTIONS_TABLE_PADDING = (0, 1, 0, 0)  # type: ignore[assignment]
    try:
        code = app(args=arguments, prog_name="vegas", standalone_mode=False)
    except TyperException as error:
        message = error.format_message()
        if not message:  # no arguments at all: the help has been shown
            return BAD_INPUT
        # What reads a flag's value says what is wrong with it, and not what it was.
        for wrong in getattr(error.__cause__, "errors", list)():
            message = f"{message.removesuffix('.')}; got {wrong['input']!r}"
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context else ""
        return _fail(f"{message}{'' if message.endswith(('.', '?')) else '.'}{hint}")
    except typer.Abort:
        code = INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or is_for_the_user(error):
            raise
        return _fail(f"cannot write the output: {error.strerror}")
    except Exception as error:
        if not is_for_the_user(error):
            raise
        return _fail(str(error))
    if code == INTERRUPTED:  # also what typer makes of a KeyboardInterrupt
        typer.echo("vegas: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _fail(sentence: str) -> int:
    typer.echo(f"vegas: {sentence}", file=sys.stderr)
    return BAD_INPUT
