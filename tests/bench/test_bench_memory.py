"""Prompts that were read take memory as long as they are measured, and no longer."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from vegas_spec import LLM
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

ACCEPTANCE = ["acceptance", "--workload", "needle:min_tokens=300,max_tokens=300", "--prompts", "3", "--batch", "1"]
THROUGHPUT = ["throughput", "--contexts", "200,250,300", "--repeats", "1"]


@pytest.mark.parametrize("arguments", [ACCEPTANCE, THROUGHPUT])
def test_a_batch_is_gone_before_the_next_is_read(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    read: list[weakref.ref[Any]] = []
    alive: list[int] = []
    honest = LLM.prefill

    def prefill(llm: LLM, *given: Any) -> Any:
        gc.collect()
        alive.append(sum(each() is not None for each in read))
        prompts = honest(llm, *given)
        read.extend(map(weakref.ref, prompts))
        return prompts

    monkeypatch.setattr(LLM, "prefill", prefill)
    name, *flags = arguments
    out = ["--max-tokens", "16", "--gammas", "2", "--kv-budget-min", "8", "--out", str(tmp_path / "out.json")]
    assert run(app, ["bench", name, chat_model, *flags, *out]) == 0
    assert len(read) == 3
    assert alive == [0, 0, 0]
