"""Where models come from: a hub that may fail or hang, and the child processes that download and convert."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from vegas_spec.models import FetchError, known_models
from vegas_spec.models.child import run_child
from vegas_spec.models.hub import from_hub

MODEL = known_models()[0]


# --- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path | None]:
    """Ask a hub that answers as told; its download writes nothing."""
    monkeypatch.setattr("vegas_spec.models.hub.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("vegas_spec.models.hub.run_child", lambda command, arriving, on_bytes, env: on_bytes(7))

    def ask(answer: Callable[[], tuple[int, str]]) -> Path | None:
        def metadata(url: str, timeout: float) -> SimpleNamespace:
            assert url.endswith(MODEL.hub.filename)
            size, etag = answer()
            return SimpleNamespace(size=size, etag=etag)

        monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", metadata)
        return from_hub(MODEL, tmp_path, lambda _: None)

    return ask


def test_the_hub_is_used_if_it_has_the_very_file(hub, tmp_path: Path):
    assert hub(lambda: (MODEL.num_bytes, MODEL.sha256)) == tmp_path / "hub" / MODEL.hub.filename


@pytest.mark.parametrize("answer", [(MODEL.num_bytes, "0" * 64), (MODEL.num_bytes + 1, MODEL.sha256), (None, None)])
def test_a_hub_with_another_file_is_passed_over(hub, answer):
    assert hub(lambda: answer) is None


def test_a_hub_that_fails_or_hangs_is_passed_over(hub):
    def refuse() -> tuple[int, str]:
        raise ConnectionError

    def hang() -> tuple[int, str]:
        time.sleep(3)
        return MODEL.num_bytes, MODEL.sha256

    begin = time.monotonic()
    assert hub(refuse) is None
    assert hub(hang) is None
    assert time.monotonic() - begin < 2


# --- child processes ------------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_is_quiet_and_its_bytes_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    heard: list[int] = []
    code = "import sys, time; print('noise'); open(sys.argv[1] + '/file', 'wb').write(bytes(7)); time.sleep(.5)"
    run_child([*python(code), str(tmp_path)], tmp_path, heard.append)
    assert heard[-1] == 7
    assert len(heard) >= 2, "also while it runs"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('WARNING: a\\nERROR: no network\\nnote: see above')", "no network"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("import sys; sys.exit(3)", "it said nothing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "enough memory"),
    ],
)
def test_a_child_that_fails_has_the_last_word(tmp_path: Path, code: str, says: str):
    with pytest.raises(FetchError, match=says):
        run_child(python(code), tmp_path, lambda _: None)


def test_a_child_out_of_disk_space_is_told_apart(tmp_path: Path):
    code = "import errno, os, sys; sys.exit(f'ERROR: {os.strerror(errno.ENOSPC)}')"
    with pytest.raises(OSError, match="No space") as error:
        run_child(python(code), tmp_path, lambda _: None)
    assert error.value.errno == errno.ENOSPC


def test_a_child_does_not_outlive_an_interruption(tmp_path: Path):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_child(python("import time; time.sleep(60)"), tmp_path, interrupt)
    assert time.monotonic() - begin < 20
