"""Every kernel, compiled for Ampere, Ada, Hopper and Blackwell, whether such a GPU is here or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_kernel_compiles_and_fits():
    """With the configuration that each GPU gets; the shared memory of a program is known once it is compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.ops.compile_child"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    compiled = json.loads(child.stdout)
    assert {each["capability"] for each in compiled} == {80, 86, 89, 90, 100, 120}
    kernels = {
        "plan_kernel",
        "verify_kernel",
        "select_kernel",
        "rank_kernel",
        "sparse_kernel",
        "truncate_kernel",
    }
    assert {each["kernel"] for each in compiled} == kernels
    assert [each for each in compiled if each["shared"] > each["limit"]] == []
