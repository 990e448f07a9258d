"""What the subcommands that write a page share."""

from __future__ import annotations

import importlib.util

from vegas_spec.cli.errors import UsageError
from vegas_spec.environment import pip_install


def need(command: str, *modules: str) -> None:
    """Refuse to run without what the page is made with, before any other work is done.

    Raises
    ------
    UsageError
        Naming what is missing and the extra that brings it.

    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{command} needs {' and '.join(missing)}; run: {pip_install('report')}")
