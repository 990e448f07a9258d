"""Fetch a model's file from the model hub, where it answers."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

from vegas_spec.models.catalogue import KnownModel
from vegas_spec.models.child import OnBytes, run_child

ANSWER_SECONDS = 5.0

_DOWNLOAD = "import sys, huggingface_hub as hub; hub.hf_hub_download(sys.argv[1], sys.argv[2], local_dir=sys.argv[3])"


def from_hub(model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path | None:
    """Download the file into `folder`; None if the hub does not answer, or has another file under this name.

    The hub's library resumes what it had begun. Raises as `run_child` does.
    """
    if not _has_the_file(model):
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


def _has_the_file(model: KnownModel) -> bool:
    found: list[bool] = []

    def ask() -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        try:
            url = hf_hub_url(model.hub.repository, model.hub.filename)
            metadata = get_hf_file_metadata(url, timeout=ANSWER_SECONDS)
        except Exception:  # no network, no name service, a proxy's page, offline mode, ...: the hub does not answer
            return
        # For a large file the hub's etag is its sha256.
        found.append(metadata.size == model.num_bytes and metadata.etag == model.sha256)

    # A thread, because looking up a host's name has no timeout of its own.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * ANSWER_SECONDS)
    return found == [True]
