"""Greedy float32 output with Vegas equals stock vLLM's, for every family, however requests meet in a batch."""

import pytest
from serving_prompts import VEGAS, prompts

SMALL = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    # Prompts take several chunks, beside other requests' verifications.
    "max_num_batched_tokens": 48,
    # 8 blocks of 32 for one full context, and the one that is never used: four growing requests push each other out.
    "num_gpu_blocks_override": 9,
}


@pytest.fixture(scope="module")
def pair(engines):
    """Stock vLLM and Vegas, the same model and limits."""
    engines.start("plain", "qwen3", **SMALL)
    engines.start("vegas", "qwen3", speculative_config=VEGAS, **SMALL)
    return engines


def same(pair, tokens, options):
    """Generate with both; assert that they say the same, and return it."""
    expected = pair.generate("plain", tokens, options)
    assert pair.generate("vegas", tokens, options) == expected
    return expected


def test_the_engine_is_what_it_should_be(pair):
    """V2 runner, our speculator and attention; stock vLLM beside it in the same process stays stock."""
    vegas, plain = pair.describe("vegas"), pair.describe("plain")
    assert vegas["runner"] == plain["runner"]
    assert "vllm.v1.worker.gpu.model_runner" in vegas["runner"]
    assert vegas["speculator"] == "VegasSpeculator"
    assert vegas["attention"] == ["VegasCPUAttentionImpl"]
    assert plain["speculator"] == "NoneType"
    assert plain["attention"] == ["CPUAttentionBackendImpl"]


@pytest.mark.parametrize("model", ["qwen2", "llama", "gemma3"])
def test_families(engines, model):
    """Sliding-window layers and full attention, query norms and biases."""
    options = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 40}
    engines.start(f"{model}-plain", model, **options)
    engines.start(f"{model}-vegas", model, speculative_config=VEGAS, **options)
    tokens = prompts(1, 40, 90, 150)
    expected = engines.generate(f"{model}-plain", tokens, {"max_tokens": 12})
    assert engines.generate(f"{model}-vegas", tokens, {"max_tokens": 12}) == expected
    assert engines.counters(f"{model}-vegas")["accepted"] > 0


def test_chunked_prefill(pair):
    """Seven requests for four places; prompts from one token to several chunks, beside others' verifications."""
    same(pair, prompts(70, 1, 130, 3, 49, 100, 2), {"max_tokens": 12})
    counters = pair.counters("vegas")
    assert 0 < counters["accepted"] < counters["drafted"]


@pytest.mark.parametrize("policy", ["vegas", "specextend"])
def test_preemption(pair, policy):
    """Four requests that need 12 blocks at their ends, in a cache of 8; specextend remembers chunks of each."""
    pair.start(policy, "qwen3", speculative_config={**VEGAS, "policy": policy}, **SMALL)
    tokens, options = prompts(30, 31, 28, 26, seed=7), {"max_tokens": 50}
    assert pair.generate(policy, tokens, options) == pair.generate("plain", tokens, options)
    assert pair.counters(policy)["preempted"] > 0


def test_prefix_cache(pair):
    """A prompt whose blocks are cached from an earlier request, whole or in part; drafts never enter the cache."""
    [first] = prompts(100, seed=1)
    pair.corrupt_drafts("vegas", 0.5)
    [[said]] = same(pair, [first], {"max_tokens": 30})
    pair.corrupt_drafts("vegas", 0)
    # 32 tokens a block: the third leaves one token to run, which vLLM may run as if it were a decoding request's.
    same(pair, [first, first + said["tokens"], first[:65], first[:64] + [7] * 10], {"max_tokens": 12})


def test_corrupted_drafts(pair):
    """Random tokens in place of drafts change the speed only."""
    pair.corrupt_drafts("vegas", 0.3)
    same(pair, prompts(70, 1, 130, 9, seed=2), {"max_tokens": 12})
    pair.corrupt_drafts("vegas", 0)


def test_context_limit(pair):
    """Up to the last position that the model has, where drafts no longer fit."""
    [[output]] = same(pair, prompts(235, seed=3), {"max_tokens": None})
    assert output["finish"] == "length"
    assert len(output["tokens"]) == 256 - 235


def test_aborts(pair):
    """Requests that leave in mid-flight leave the others alone."""
    tokens = prompts(60, 20, 90, 5, 33, seed=4)
    expected = pair.abort_some("plain", tokens, {"max_tokens": 16}, aborted=(), after=0)
    left = pair.abort_some("vegas", tokens, {"max_tokens": 16}, aborted=(0, 3), after=4)
    assert left == {index: expected[index] for index in (1, 2, 4)}


FEATURES = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence_and_frequency": {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    "bad_words": {"bad_words": ["I", "J", "K"]},
    "logit_bias": {"logit_bias": {**dict.fromkeys(range(30, 90), 4.0), 100: -100.0}},
    "allowed_tokens": {"allowed_token_ids": list(range(40, 80))},
    "min_tokens": {"min_tokens": 8, "ignore_eos": False},
    "stop_token": {"stop_token_ids": list(range(0, 256, 9))},
    "stop_string": {"stop": [chr(c) for c in range(33, 50)], "include_stop_str_in_output": True},
    "json": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
}


@pytest.fixture(scope="module")
def featured(pair):
    """All features in one batch, so that rows with and without each meet."""
    options = [{"max_tokens": 12, **feature} for feature in FEATURES.values()]
    tokens = prompts(*range(10, 10 + 6 * len(options), 6), seed=5)
    plain, vegas = (pair.generate(name, tokens, options) for name in ("plain", "vegas"))
    return {feature: (plain[i], vegas[i]) for i, feature in enumerate(FEATURES)}


@pytest.mark.parametrize("feature", FEATURES)
def test_features(featured, feature):
    """What a request may ask for is applied to the target's side, and comes out the same."""
    plain, vegas = featured[feature]
    assert vegas == plain


def test_opting_out(pair):
    """Requests without drafts beside others; and alone, where nothing is drafted. All say the same."""
    without = {"extra_args": {"vegas": False}}
    tokens, before = prompts(70, 3, 40, seed=33), pair.counters("vegas")["drafted"]
    same(pair, tokens, [{"max_tokens": 12, **without}, {"max_tokens": 12}, {"max_tokens": 12, **without}])
    mixed = pair.counters("vegas")["drafted"]
    # 12 tokens take 11 verifications of three drafts at most.
    assert before < mixed <= before + 33
    same(pair, tokens, {"max_tokens": 12, **without})
    assert pair.counters("vegas")["drafted"] == mixed
    with pytest.raises(RuntimeError, match="must be true or false; got 'no'"):
        pair.generate("vegas", tokens, {"extra_args": {"vegas": "no"}})


def test_figures(pair):
    """What workers measure when they are asked to, from nothing at each beginning."""
    assert pair.rpc("vegas", "vegas_figures") == [None]
    pair.rpc("vegas", "vegas_record")
    pair.generate("vegas", prompts(101, seed=34), {"max_tokens": 1})
    [figures] = pair.rpc("vegas", "vegas_figures")
    # After 101 tokens in three chunks: three drafts, each of 31 entries and of what came since; dense ones see it all.
    assert figures["steps"] == {"prompts": 3, "accept": 3, "draft": 3}
    assert figures["draft_kv_read"] == 32 + 33 + 34
    assert figures["draft_kv_dense"] == 102 + 103 + 104
    pair.rpc("vegas", "vegas_record")
    pair.generate("vegas", prompts(40, seed=34), {"max_tokens": 12})
    pair.rpc("vegas", "vegas_record", False)
    [figures] = pair.rpc("vegas", "vegas_figures")
    steps = figures["steps"]
    assert steps["verify"] > 0
    assert steps["accept"] == steps["draft"] == steps["prompts"] + steps["verify"]
    assert steps.keys() == figures["seconds"].keys()
    assert min(figures["seconds"].values()) > 0
    pair.generate("vegas", prompts(40, seed=34), {"max_tokens": 12})
    assert pair.rpc("vegas", "vegas_figures") == [figures]
    assert not figures["recording"]


def test_logprobs(pair):
    """The values are those of the verified distribution."""
    options = {"max_tokens": 10, "logprobs": 2, "prompt_logprobs": None}
    tokens = prompts(50, 8, seed=6)
    plain, vegas = (pair.generate(name, tokens, options) for name in ("plain", "vegas"))
    for [expected], [got] in zip(plain, vegas, strict=True):
        assert got["tokens"] == expected["tokens"]
        for expected_step, got_step in zip(expected["logprobs"], got["logprobs"], strict=True):
            assert got_step == pytest.approx(expected_step, abs=1e-4)


def test_shared_prefix(engines):
    """Eight requests on one prefix hold more tokens than there is room to score: some draft by a window."""
    limits = {"max_model_len": 256, "max_num_seqs": 8, "num_gpu_blocks_override": 20}
    engines.start("shared-plain", "qwen3", **limits)
    engines.room_for_scores(300)
    engines.start("shared-vegas", "qwen3", speculative_config=VEGAS, **limits)
    engines.room_for_scores(None)
    [prefix] = prompts(96, seed=30)
    tokens = [prefix + tail for tail in prompts(*range(1, 9), seed=31)]
    expected = engines.generate("shared-plain", tokens, {"max_tokens": 8})
    assert engines.generate("shared-vegas", tokens, {"max_tokens": 8}) == expected
    assert engines.scores_dropped("shared-vegas") > 0
    assert engines.counters("shared-vegas")["drafted"] > 0


@pytest.mark.parametrize(
    "asked",
    [
        {"policy": "dense"},
        {"policy": "stream"},
        {"policy": "quest", "kv_budget_min": 48},
        {"policy": "specextend"},
        {"granularity": "layer", "score": "logit"},
        {"rows": "all", "num_speculative_tokens": 5},
    ],
    ids=["dense", "stream", "quest", "specextend", "layer-logit", "all-rows"],
)
def test_options(pair, asked):
    """Other ways to choose what drafts read change acceptance only."""
    name = "-".join(map(str, asked.values()))
    pair.start(name, "qwen3", speculative_config={**VEGAS, **asked}, **SMALL)
    tokens = prompts(70, 3, 100, seed=32)
    assert pair.generate(name, tokens, {"max_tokens": 12}) == pair.generate("plain", tokens, {"max_tokens": 12})
    counters = pair.counters(name)
    assert counters["drafted"] > 0
    if asked.get("policy") == "dense":
        assert counters["accepted"] == counters["drafted"]
