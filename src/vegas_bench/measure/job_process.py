"""A program in a process of its own, which is given a job and answers by JSON lines while it works."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vegas_bench.results.results import ResultError

_POLL_SECONDS = 0.1
_TOLD_LINES = 15
_STDERR = 2


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
        Takes what the program prints, after what is there; stderr if None.

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
                stdout=messages,
                stderr=subprocess.STDOUT,
                # vLLM's workers run functions of ours, such as timers.
                env={**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
            )

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
        self._folder.cleanup()
