"""A program in a process of its own, which is given a job and answers by JSON lines while it works."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vegas_bench.results.results import ResultError

_POLL_SECONDS = 0.1  # between two looks at what was answered; chosen by hand
_TOLD_LINES = 15  # of the log of a program that failed; chosen by hand
_STDERR = 2  # file descriptor
_BEGIN = b"begin\n"


class JobProcess:
    """Starts a program at once; leaving the ``with`` block ends it, and lets it end its own processes.

    Parameters
    ----------
    name : str
        Of the program, for messages.
    program : sequence of str
        What to run. Its last argument will be a JSON file with the job, whose ``out`` names the file to write lines to.
    job : mapping
        Fit for JSON.
    log : Path, optional
        Takes what the program prints, after what is there; deleted if all goes well. Stderr if None.

    """

    def __init__(self, name: str, program: Sequence[str], job: Mapping[str, Any], log: Path | None = None) -> None:
        self._name, self._log = name, log
        self._folder = tempfile.TemporaryDirectory()
        path, self._out = Path(self._folder.name, "job.json"), Path(self._folder.name, "out.jsonl")
        self._out.touch()
        path.write_text(json.dumps({**job, "out": str(self._out)}), encoding="utf-8")
        with contextlib.nullcontext(_STDERR) if log is None else log.open("ab") as messages:
            self._process = subprocess.Popen(
                [*program, str(path)],
                stdin=subprocess.PIPE,
                stdout=messages,
                stderr=subprocess.STDOUT,
                # vLLM's workers run functions of ours, such as timers.
                env={**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
            )

    def begin(self) -> None:
        """Let a program begin that waits for its turn; it may have ended already."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(_BEGIN)
            self._process.stdin.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Give what the program answers as it comes, until it has ended.

        Raises
        ------
        ResultError
            If it fails, with the end of its log.

        """
        with self._out.open(encoding="utf-8") as file:
            rest, over = "", False
            while not over:
                over = self._process.poll() is not None
                *whole, rest = (rest + file.read()).split("\n")
                yield from map(json.loads, whole)
                if not over:
                    time.sleep(_POLL_SECONDS)
        if self._process.returncode:
            raise ResultError(f"{self._name} ended with exit code {self._process.returncode}{self._last_words()}")
        if self._log is not None:
            self._log.unlink(missing_ok=True)

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        text = self._log.read_text(encoding="utf-8", errors="replace").rstrip()
        return f"; its log, {self._log}, ends with:\n" + "\n".join(text.splitlines()[-_TOLD_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()


@contextlib.contextmanager
def job_of(path: str) -> Iterator[tuple[dict[str, Any], Callable[..., None]]]:
    """In the program: read a job, and give with it what answers; the named arguments of each call become a line."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    with Path(job["out"]).open("a", encoding="utf-8") as out:

        def answer(**fields: Any) -> None:
            out.write(json.dumps(fields) + "\n")
            out.flush()

        yield job, answer


def wait_for_turn() -> None:
    """In the program: wait until `JobProcess.begin` is called; end if nobody will any more."""
    if sys.stdin.buffer.readline() != _BEGIN:
        sys.exit("nobody waits for this program any more")
