"""What must be set before any test module is imported."""

from __future__ import annotations

import os

import torch

# Without a GPU, kernels run in Triton's interpreter. Triton's own library reads the switch once, at its first import,
# which may be transformers' doing.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
