"""What must be set before any test module is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

# Without a GPU, kernels run in Triton's interpreter. Triton's own library reads the switch once, at its first import,
# which may be transformers' doing.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models run fastest on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


LONGEST_FIRST = ("vllm", "ops", "engine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none; what takes longest comes first."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
    items.sort(key=lambda item: _rank(item.path.parent.name))


def _rank(folder: str) -> int:
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


class Groups(LoadScopeScheduling):
    """A file's tests share what they load, and those of the vLLM plugin their engines: each stays in one worker."""

    # What xdist has for subclasses to say so, underscore and all.
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "vllm" if path.startswith("tests/vllm/") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """With several workers (``-n 2``)."""
    return Groups(config, log)
