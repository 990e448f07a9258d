"""The model hub: whether it answers, and a model's file from it."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread
from typing import Any

from vegas_spec.models.catalogue import KnownModel
from vegas_spec.models.child import OnBytes, run_child

ANSWER_SECONDS = 5.0
"""How long the hub may take to answer before it counts as out of reach. Chosen by hand."""

_DOWNLOAD = "import sys, huggingface_hub as hub; hub.hf_hub_download(sys.argv[1], sys.argv[2], local_dir=sys.argv[3])"


def ask(repository: str, filename: str, revision: str | None = None) -> Any:
    """Ask for a file once: its metadata, the hub's error if it has none for us, or None if the hub does not answer."""
    answers: list[Any] = []

    def wait() -> None:
        from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

        try:
            url = hf_hub_url(repository, filename, revision=revision)
            answers.append(get_hf_file_metadata(url, timeout=ANSWER_SECONDS))
        except errors.HfHubHTTPError as error:
            answers.append(error)
        except Exception:  # no network, no name service, a proxy's page, offline mode, ...
            return

    # A thread, because looking up a host's name has no timeout of its own.
    asking = Thread(target=wait, daemon=True)
    asking.start()
    asking.join(2 * ANSWER_SECONDS)
    return answers[0] if answers else None


def from_hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path | None:
    """Download the file into `folder`; None if the hub does not answer, or has another file under this name.

    The hub's library resumes what it had begun. Raises as `run_child` does.
    """
    found = ask(model.hub.repository, model.hub.filename)
    # For a large file the hub's etag is its sha256.
    if (getattr(found, "size", None), getattr(found, "etag", None)) != (model.num_bytes, model.sha256):
        return None
    arriving = folder / "hub"
    arriving.mkdir(parents=True, exist_ok=True)
    # A child process, because its progress bars and log are process-wide settings of that library.
    run_child(
        [sys.executable, "-c", _DOWNLOAD, model.hub.repository, model.hub.filename, str(arriving)],
        arriving,
        on_bytes,
        env={"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    return arriving / model.hub.filename
