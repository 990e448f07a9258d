"""What the subcommands that write a page share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from vegas_spec.cli.errors import UsageError


def need(command: str, *modules: str) -> None:
    """Refuse to run without what the page is made with, before any other work is done.

    Raises
    ------
    UsageError
        Naming what is missing and the extra that brings it.

    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{command} needs {' and '.join(missing)}; run: pip install 'vegas-spec[report]'")


def write_page(html: str, path: Path) -> None:
    """Write a page; folders on its way are made.

    Raises
    ------
    UsageError
        If it cannot be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file name in a stored command may hold bytes that are no text.
        path.write_text(html, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
