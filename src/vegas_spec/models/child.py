"""Run a program as a child process: quiet, with the bytes that it writes reported, and one sentence when it fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

OnBytes = Callable[[int], None]
"""Called with the number of bytes that have arrived so far."""

POLL_SECONDS = 0.2
"""Between two looks at what has arrived. Chosen by hand."""


class FetchError(RuntimeError):
    """A model could not be fetched; the message is one sentence for the user."""


def run_child(command: Sequence[str], arriving: Path, on_bytes: OnBytes, env: Mapping[str, str] | None = None) -> None:
    """Run `command` to its end and report the size of what it puts into the folder `arriving`.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    arriving : Path
        The folder that the program writes to, its temporary files included.
    on_bytes : callable
        Told the bytes in `arriving` a few times per second.
    env : mapping, optional
        Environment variables to add.

    Raises
    ------
    OSError
        With ``ENOSPC``, if the program ran out of disk space.
    FetchError
        If it failed otherwise: the last thing that it had to say.

    """
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})}
        )
        try:
            while True:
                try:
                    child.wait(POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(_bytes_in(arriving))
        finally:
            # Ctrl-C here must not leave a program behind that writes into a folder someone else may take over.
            if child.poll() is None:
                child.terminate()
                child.wait()
        log.seek(0)
        said = log.read().decode(errors="replace")
    if child.returncode == 0:
        on_bytes(_bytes_in(arriving))
        return
    if os.strerror(errno.ENOSPC) in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    killed = child.returncode == -signal.SIGKILL
    raise FetchError("it was killed; is there enough memory?" if killed else _last_words(said) or "it said nothing.")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # renamed or removed by the downloader meanwhile
            continue
    return total


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1].removeprefix("ERROR:").strip()
