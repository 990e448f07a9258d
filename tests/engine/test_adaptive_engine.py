"""The online mode in the engine: it adapts, within what was configured, and changes nothing that is said."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm, reference
from tiny_models import random_prompt

from vegas_spec import ConfigError, VegasConfig
from vegas_spec.engine import adaptive
from vegas_spec.engine.attention import RowSpan
from vegas_spec.engine.backend import Backend, Kind

PROMPTS = [random_prompt(length, seed=length) for length in (40, 2, 61)]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "vegas"},
        {"policy": "vegas", "attention": "kernels"},
        {"policy": "quest", "kv_budget_min": 32},
        {"policy": "dense"},
        {"policy": "full"},
    ],
    ids=str,
)
def test_it_says_what_the_model_says(options: dict[str, Any]) -> None:
    llm = make_llm("qwen3", max_num_seqs=2, adaptive=True, num_speculative_tokens=5, kv_budget=0.8, **options)
    for _ in range(2):  # what was learnt in one run holds for the next
        outputs = llm.generate(as_prompts(PROMPTS), greedy(40))
        assert generated(outputs) == [reference("qwen3", prompt, 40) for prompt in PROMPTS]


def test_draft_length_and_budget_change_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, lengths = Counter[float](), Counter[int]()
    honest = Backend.begin

    def begin(self: Backend, kind: Kind, batch: Sequence[RowSpan], budgets: Sequence[int] = ()) -> Backend:
        if kind == "verify":
            shares[round(budgets[0] / (batch[0].start + 1), 1)] += 1
        return honest(self, kind, batch, budgets)

    class Watched(adaptive.Adaptive):
        def observe(self, batch: Any, num_drafts: Any, *others: Any) -> None:
            lengths.update(num_drafts)
            super().observe(batch, num_drafts, *others)

    monkeypatch.setattr(Backend, "begin", begin)
    monkeypatch.setattr("vegas_spec.engine.engine.Adaptive", Watched)
    llm = make_llm("qwen3", adaptive=True, num_speculative_tokens=8, kv_budget=0.4, kv_budget_min=2)
    [output] = llm.generate(as_prompts([random_prompt(100)]), greedy(140))
    assert set(shares) == {0.4, 0.2, 0.1}
    assert len(lengths) > 2
    assert max(lengths) <= 8
    assert output.stats.num_speculative_tokens == 8
    assert 0 < output.stats.draft_kv_share < 1


@pytest.mark.parametrize("how", ["closed", "failed", "done"])
def test_nothing_is_kept_of_requests_that_have_ended(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    seen: list[adaptive.Adaptive] = []

    class Watched(adaptive.Adaptive):
        def observe(self, *results: Any) -> None:
            super().observe(*results)
            seen.append(self)
            if how == "failed" and len(seen) == 5:
                raise MemoryError

    monkeypatch.setattr("vegas_spec.engine.engine.Adaptive", Watched)
    llm = make_llm("qwen3", max_num_seqs=2, adaptive=True)
    stream = llm.stream(as_prompts(PROMPTS), greedy(40))
    with pytest.raises(MemoryError) if how == "failed" else contextlib.nullcontext():
        for _ in stream:
            if len(seen) == 5 and how == "closed":
                assert seen[0].pacer.requests
                break
    stream.close()  # type: ignore[attr-defined]
    assert not seen[0].pacer.requests


def test_where_it_cannot_be() -> None:
    with pytest.raises(ConfigError, match="adaptive must be true or false; got 'yes'"):
        VegasConfig(adaptive="yes")  # type: ignore[arg-type]
