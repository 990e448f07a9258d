"""Sampled output has the distribution of plain sampling, whatever the draft's distribution is."""

from collections import Counter

import pytest
import torch
from serving_prompts import prompts

OPTIONS = {"temperature": 0.5, "top_k": 4, "top_p": 0.95, "repetition_penalty": 1.2}
LENGTH = 3
SAMPLES = 48


@pytest.fixture(scope="module")
def sampler(engines):
    """Many places; two drafts, over half of the context."""
    vegas = {"method": "vegas", "num_speculative_tokens": 2, "kv_budget": 0.5, "kv_budget_min": 4, "fall_back": False}
    engines.start("sampler", "qwen3", speculative_config=vegas, max_model_len=128, max_num_seqs=32)
    return engines


def p_value(counts, expected):
    """Chi-square test over cells taken together, the likeliest first, until each expects at least five."""
    observed, means = [0.0], [0.0]
    for cell, mean in sorted(expected.items(), key=lambda item: -item[1]):
        if means[-1] >= 5:
            observed.append(0.0)
            means.append(0.0)
        observed[-1] += counts[cell]
        means[-1] += mean
    statistic = sum((o - m) ** 2 / m for o, m in zip(observed, means, strict=True))
    half = torch.tensor([(len(means) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


@pytest.mark.parametrize(
    ("noise", "more"), [(0.0, {}), (2.0, {"min_p": 0.3, "logit_bias": dict.fromkeys(range(60, 70), 6.0)})]
)
def test_distribution(sampler, noise, more):
    """Temperature, top-k, top-p and penalties, with the draft as it is; and with one that is deliberately wrong, beside
    what vLLM refuses with other speculation: min-p and biases."""
    [prompt] = prompts(40, seed=8)
    wanted = {**OPTIONS, **more}
    exact = sampler.exact_distribution("qwen3", prompt, LENGTH, **wanted)
    sampler.bias_drafts("sampler", noise)
    options = [{**wanted, "max_tokens": LENGTH, "seed": seed} for seed in range(SAMPLES)]
    outputs = sampler.generate("sampler", [prompt] * SAMPLES, options)
    counts = Counter(tuple(output["tokens"]) for [output] in outputs)
    assert counts.keys() <= exact.keys()
    assert p_value(counts, {said: SAMPLES * p for said, p in exact.items()}) > 0.001
    assert sampler.counters("sampler")["accepted"] > 0
    # Drafts are drawn from what the target leaves, give or take what is as likely within a step of a grid.
    fewest, most = sampler.draft_support("sampler")
    assert 1 <= fewest <= most <= OPTIONS["top_k"] + 1


def test_several_sequences_and_seeds(sampler):
    """``n`` and ``seed``: the same request says the same again, and its sequences differ."""
    options = {"temperature": 1.0, "n": 3, "seed": 11, "max_tokens": 6}
    first, second = (sampler.generate("sampler", prompts(30, seed=9), options) for _ in range(2))
    assert first == second
    assert len({tuple(output["tokens"]) for output in first[0]}) == 3
