"""Where drafting cannot gain, the engine decodes plainly, and drafts again where it can."""

from types import SimpleNamespace

import pytest
import torch
from serving_prompts import VEGAS, prompts

from vegas_spec.config import VegasConfig
from vegas_spec.pacing.costs import CostModel, Overheads
from vegas_spec.pacing.pacer import RESUME, SUSPEND
from vegas_spec.pacing.rates import EXPECTED_RATE
from vegas_spec.pacing.step_pacer import StepPacer
from vegas_spec.vllm.scheduler.cost import estimate_cost

QWEN3_8B = CostModel(weights=15.1e9, per_token=36 * 8 * 128 * 2 * 2, layers=36)
CODER = CostModel(weights=3.09e9, per_token=28 * 2 * 128 * 2 * 2, layers=28)
BANDWIDTH = 4.27e9
"""Bytes that an H200 reads in a millisecond."""


@pytest.mark.parametrize(
    ("cost", "context", "batch", "plain", "verify", "draft"),
    [
        (QWEN3_8B, 32_768, 16, 22.5, 26.8, 5.83),
        (QWEN3_8B, 130_000, 4, 22.3, 25.0, 5.88),
        (QWEN3_8B, 130_000, 1, 9.61, 11.7, 5.23),
        (CODER, 28_000, 32, 7.47, 10.8, 2.26),
    ],
)
def test_cost_is_what_was_measured(cost, context, batch, plain, verify, draft):
    """Milliseconds of `benchmarks/results/vllm_decode_8b.json` and `vllm_decode_1.5b.json`."""
    costs = cost.of_batch(VegasConfig(), [context] * batch, batch)
    assert costs.plain / BANDWIDTH == pytest.approx(plain, rel=0.2)
    assert (costs.verify + costs.select + 6 * costs.row) / BANDWIDTH == pytest.approx(verify, rel=0.2)
    assert costs.draft / BANDWIDTH == pytest.approx(draft, rel=0.2)


def estimate(experts=0, **hf):
    """Cost of a model of 36 layers with Qwen3-8B's attention, from its configuration."""
    model = SimpleNamespace(
        hf_text_config=SimpleNamespace(hidden_size=4096, num_hidden_layers=36, **hf),
        dtype=torch.bfloat16,
        quantization=None,
        get_num_attention_heads=lambda parallel: 32,
        get_num_kv_heads=lambda parallel: 8,
        get_head_size=lambda: 128,
        get_vocab_size=lambda: 151_936,
        get_num_experts=lambda: experts,
        get_num_experts_per_tok=lambda: 2,
    )
    return estimate_cost(
        SimpleNamespace(
            model_config=model,
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            scheduler_config=SimpleNamespace(max_num_seqs=64),
            cache_config=SimpleNamespace(cache_dtype="auto"),
        )
    )


def test_cost_is_estimated_from_the_shape():
    """Of Qwen3-8B, what the rule was fitted to: bytes of weights as they are, and layers apart."""
    cost = estimate(intermediate_size=12_288)
    assert cost.weights == pytest.approx(QWEN3_8B.weights, rel=0.01)
    assert (cost.per_token, cost.layers) == (QWEN3_8B.per_token, QWEN3_8B.layers)


@pytest.mark.parametrize(
    "named",
    [
        {"ffn_dim": 16_384},
        {"ffn_hidden_size": 16_384},
        {"n_inner": None},
        {},
        {"intermediate_size": [8192, 24_576]},
        {"intermediate_size": 99, "moe_intermediate_size": 4096, "experts": 4},
    ],
)
def test_the_names_that_families_have(named):
    """OPT, Falcon, GPT-2 and others have other names for the width of feed-forward blocks, or give one per layer."""
    assert estimate(**named).weights == pytest.approx(estimate(intermediate_size=16_384).weights)


def falling_back():
    """The rule of an engine that drafts six tokens or none."""
    return StepPacer(VegasConfig(), QWEN3_8B, [0, 6])


def drafts(rule, contexts):
    """Whether drafts follow a step, none of which is timed."""
    return rule.decide(contexts, range(len(contexts)), False, 0.0) > 0


def drafting_steps(rule, contexts, accepted, steps):
    """In which of so many steps was drafted, of which every request has `accepted` drafts accepted."""
    drafting = []
    for _ in range(steps):
        drafting.append(drafts(rule, contexts))
        for request in range(len(contexts)) if drafting[-1] else ():
            rule.observe(request, 6, accepted)
    return drafting


@pytest.mark.parametrize(
    ("context", "batch", "gains"),
    [(32_768, 16, True), (130_000, 4, True), (16_384, 16, True), (1024, 32, False), (4096, 8, False), (100, 1, False)],
)
def test_rule(context, batch, gains):
    """8B shapes on one GPU: long contexts gain, short ones do not."""
    assert drafts(falling_back(), [context] * batch) == gains


def test_rule_wants_drafts_to_be_accepted():
    """The same batch, while hardly any draft is, and when they are again: what is not tried is not seen."""
    rule, contexts = falling_back(), [32_768] * 16
    assert not drafting_steps(rule, contexts, 0, 100)[-1]
    assert 0 < sum(drafting_steps(rule, contexts, 0, 5000)) < 0.03 * 5000
    assert drafting_steps(rule, contexts, 6, 1000)[-1]


@pytest.mark.parametrize("bounds", [{}, {"kv_budget_min": 7}, {"kv_budget_min": 1, "kv_budget_max": 300}])
def test_what_drafts_read_is_each_contexts_budget(bounds):
    """Of all contexts together."""
    config = VegasConfig(kv_budget=0.03, **bounds)
    contexts = [1, 2, 6, 7, 255, 257, 9_999, 10_000, 10_001, 131_072]
    read = CostModel(weights=0.0, per_token=1.0, overheads=Overheads()).of_batch(config, contexts, 0).draft
    assert read == sum(config.budget(length) for length in contexts)


def test_between_the_thresholds_nothing_changes():
    """A batch at the border does not switch back and forth."""
    accepted = sum(EXPECTED_RATE**distance for distance in range(1, 7))

    def gain(context):
        return QWEN3_8B.of_batch(VegasConfig(), [context] * 8, 8).speedup(6, accepted)

    rule = falling_back()
    border = next(n for n in range(100, 100_000, 100) if SUSPEND < gain(n) < RESUME)
    assert drafts(rule, [border] * 8)
    assert not drafts(rule, [100] * 8)
    assert not drafts(rule, [border] * 8)
    assert drafts(rule, [100_000] * 8)


def test_nobody_decodes():
    """A step of prompts only leaves the decision alone."""
    assert drafts(falling_back(), [])


@pytest.mark.parametrize("policy", ["vegas", "specextend"])
def test_engine(engines, policy):
    """Output stays the same through both changes, and drafts are made for long contexts only."""
    limits = {"max_model_len": 256, "max_num_seqs": 4}
    engines.start("plain-cost", "qwen3", **limits)
    # Reading 100 tokens of context costs as much as reading the weights.
    engines.cost_of_a_pass(weights=100.0, per_token=1.0)
    engines.stop_the_clock()
    name = f"fall-back-{policy}"
    engines.start(name, "qwen3", speculative_config={**VEGAS, "policy": policy, "fall_back": True}, **limits)
    # Of what a random model drafts hardly anything is accepted.
    engines.believe_in_drafts(name)

    def same(tokens, options):
        assert engines.generate(name, tokens, options) == engines.generate("plain-cost", tokens, options)
        return engines.counters(name)["drafted"]

    assert same(prompts(20, seed=20), {"max_tokens": 12}) == 0
    assert same(prompts(220, 215, 200, seed=21), {"max_tokens": 12}) > 0
    before = engines.counters(name)["drafted"]
    # The long requests end first: drafting stops for what is left.
    after = same(prompts(30, 230, 225, 210, seed=22), [{"max_tokens": length} for length in (24, 8, 8, 8)])
    assert after > before
    assert same(prompts(20, seed=23), {"max_tokens": 12}) == after
