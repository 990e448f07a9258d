"""One side of a comparison in vLLM: an engine in a process of its own, which measures cases as `decode_speed` does."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vegas_bench.measure.job_process import JobProcess
from vegas_bench.measure.model_size import ModelSize
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.environment import pip_install
from vegas_spec.vllm.start.options import split_options


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
    """What a case of a side measured; see `vegas_bench.results.results.ThroughputRow` for the figures."""

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
        raise ConfigError(f"engine vllm needs vLLM, which is not installed; run: {pip_install('vllm')}")


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
    job = {
        "engine": dict(engine),
        "cases": [{"key": each.key, "prompts": each.prompts, "temperature": each.temperature} for each in cases],
        "max_tokens": max_tokens,
        "repeats": repeats,
    }
    with JobProcess("vLLM", [sys.executable, "-m", "vegas_bench.measure.vllm_engine"], job, log) as process:
        for line in process.lines():
            if "size" in line:
                yield ModelSize(**line["size"])
            else:
                yield line["key"], SideMeasurement(**line["measured"])
    log.unlink()
