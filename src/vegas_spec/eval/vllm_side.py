"""One side of a comparison in vLLM: an engine in a process of its own, which measures cases as `decode_speed` does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.eval.cost_model import ModelSize
from vegas_spec.eval.results import ResultError
from vegas_spec.vllm.options import split_options

_POLL_SECONDS = 0.1
_TOLD_LINES = 15


@dataclass(frozen=True)
class Case:
    """A batch of prompts to time.

    Attributes
    ----------
    key : str
        Names it in what comes back.
    prompts : sequence
        Token ids.
    temperature : float
        Of sampling.

    """

    key: str
    prompts: Sequence[Sequence[int]]
    temperature: float


@dataclass(frozen=True)
class SideMeasurement:
    """What a case of a side measured; see `vegas_spec.eval.results.ThroughputRow` for the figures."""

    tokens_per_second: list[float]
    accepted_per_iteration: float | None
    accepted_per_position: list[float] | None
    milliseconds: dict[str, float] | None


def speculative_config(config: VegasConfig) -> dict[str, Any] | None:
    """Say a config in vLLM's terms; None, stock vLLM, for policy ``full``.

    Drafting is never suspended: what it costs, and gains, is what is measured.

    Raises
    ------
    ConfigError
        If the plugin does not support it.

    """
    if config.policy == "full":
        return None
    options = {"method": "vegas", "fall_back": False, **config.to_dict()}
    split_options(options)
    return options


def check_vllm() -> None:
    """Raise a `ConfigError` unless vLLM is installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("engine vllm needs vLLM, which is not installed: pip install 'vegas-spec[vllm]'")


def measure_side(
    engine: Mapping[str, Any], cases: Sequence[Case], max_tokens: int, repeats: int, log: Path
) -> Iterator[ModelSize | tuple[str, SideMeasurement]]:
    """Start an engine, and yield its model's size and then every case by its key as it is measured.

    Parameters
    ----------
    engine : mapping
        Arguments of `vllm.LLM`.
    cases : sequence of Case
        What to time, in this order.
    max_tokens, repeats : int
        Of each output; timed runs of each case.
    log : Path
        Takes what vLLM logs; deleted if all goes well.

    Raises
    ------
    ResultError
        If the process fails, with the end of its log.

    """
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder, "job.json"), Path(folder, "out.jsonl")
        out.touch()
        described = [{"key": each.key, "prompts": each.prompts, "temperature": each.temperature} for each in cases]
        job.write_text(
            json.dumps(
                {
                    "engine": dict(engine),
                    "cases": described,
                    "max_tokens": max_tokens,
                    "repeats": repeats,
                    "out": str(out),
                }
            ),
            encoding="utf-8",
        )
        with log.open("ab") as messages:
            process = subprocess.Popen(
                [sys.executable, "-m", "vegas_spec.vllm.decode_speed", str(job)],
                stdout=messages,
                stderr=subprocess.STDOUT,
                # Timers are functions of ours that run on vLLM's workers.
                env={**os.environ, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
            )
        with _ended(process):
            for line in _lines(process, out):
                if "size" in line:
                    yield ModelSize(**line["size"])
                else:
                    yield line["key"], SideMeasurement(**line["measured"])
        if process.returncode:
            text = log.read_text(encoding="utf-8", errors="replace").rstrip()
            end = "\n".join(text.splitlines()[-_TOLD_LINES:])
            raise ResultError(f"vLLM ended with exit code {process.returncode}; its log, {log}, ends with:\n{end}")
    log.unlink()


def _lines(process: subprocess.Popen[bytes], out: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a file that a process is writing, until it has ended."""
    with out.open(encoding="utf-8") as file:
        rest = ""
        while True:
            over = process.poll() is not None
            *whole, rest = (rest + file.read()).split("\n")
            yield from map(json.loads, whole)
            if over:
                return
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the process end its own processes, too, if we are interrupted."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
