"""Kernels run in Triton's interpreter where there is no GPU. Triton reads the switch when it decorates a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="package", autouse=True)
def interpreter_multiplies_bfloat16() -> Iterator[None]:
    """The interpreter keeps bfloat16 as uint16 and multiplies the bit patterns: widen the operands first."""
    if torch.cuda.is_available():
        yield
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    original = InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, *options):
        wide = [self.create_fp_ext(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return original(self, *wide, d, *options)

    InterpreterBuilder.create_dot = create_dot
    yield
    InterpreterBuilder.create_dot = original


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
