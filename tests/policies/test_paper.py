"""The published form is what the options can say too."""

from __future__ import annotations

import pytest
from engine_cases import as_prompts, generated, greedy, make_llm, random_prompt

AS_OPTIONS = {"score": "logit", "granularity": "layer"}


@pytest.mark.parametrize("attention", ["torch", "kernels"])
@pytest.mark.parametrize(("policy", "rows"), [("paper", "all"), ("paper-ends", "ends")])
def test_drafts_are_those_of_the_options(policy: str, rows: str, attention: str):
    """Whatever its own options say, which score otherwise."""
    common = {"attention": attention, "kv_budget": 0.3, "num_speculative_tokens": 4}
    by_name = make_llm("qwen3", policy=policy, lookahead=0.5, rows="last", **common)
    by_options = make_llm("qwen3", policy="vegas", rows=rows, **AS_OPTIONS, **common)
    prompts = as_prompts([random_prompt(length, seed=length) for length in (150, 70)])
    named, optioned = (llm.generate(prompts, greedy(30)) for llm in (by_name, by_options))
    assert generated(named) == generated(optioned)
    accepted = [output.stats.accepted_per_position for output in named]
    assert accepted == [output.stats.accepted_per_position for output in optioned]
    assert sum(map(sum, accepted)) > 0
