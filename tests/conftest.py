"""What must be set before any test module is imported."""

from __future__ import annotations

import os

import pytest
import torch

# Without a GPU, kernels run in Triton's interpreter. Triton's own library reads the switch once, at its first import,
# which may be transformers' doing.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
