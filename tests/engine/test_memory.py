"""Reading a long prompt takes memory for its cache and one piece, not for the square of its length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = """
import resource, sys, torch
sys.path.insert(0, sys.argv[1])
from tiny_models import random_prompt, tiny_model
from vegas_spec import LLM, SamplingParams
torch.set_num_threads(1)
greedy = SamplingParams(temperature=0, max_tokens=2)
for family in ("qwen3", "gemma2"):  # the fused attention, and the one with a soft-cap
    model = tiny_model(family)
    model.config.max_position_embeddings = 16384
    llm = LLM(model)
    llm.generate({"prompt_token_ids": random_prompt(600)}, greedy)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    llm.generate({"prompt_token_ids": random_prompt(int(sys.argv[2]))}, greedy)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux")
def test_the_peak_of_a_long_prompt() -> None:
    length, heads, megabyte = 6000, 4, 1 << 20
    command = [sys.executable, "-c", _CHILD, str(Path(__file__).parents[1]), str(length)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    cache = 4 * 2 * 2 * 32 * 4 * length  # layers, keys and values, heads, dim, bytes
    piece = 512 * length * heads * 4  # float32 logits of one piece of prompt in one layer
    whole = length * length * heads * 4  # and of the whole prompt
    for grown in map(int, run.stdout.split()):
        assert grown * 1024 < min(cache + 5 * piece + 64 * megabyte, 0.9 * whole)
