"""How Vegas is asked for, what it then tells vLLM, and what it refuses; no engine is started."""

import math
import sys
from types import SimpleNamespace

import pytest

from vegas_spec.config import VegasConfig
from vegas_spec.vllm.start import hooks, options, plugin, refusals

VEGAS = {"method": "vegas", "num_speculative_tokens": 4, "kv_budget": 0.1}


@pytest.mark.parametrize(
    "asked",
    [
        {"speculative_config": VEGAS},
        {"arguments": ["--speculative-config", '{"method": "vegas", "num_speculative_tokens": 4, "kv_budget": 0.1}']},
        {"arguments": ["--spec-method", "vegas", "--spec-tokens", "4", "-sc.kv-budget", "0.1"]},
    ],
    ids=["LLM", "--speculative-config", "--spec-method"],
)
def test_asking(engines, asked):
    """However it is asked for, vLLM gets its own words, and the caller's arguments stay what they were."""
    config = engines.configure("qwen3", twice=True, **asked)
    assert config == {
        "method": "custom_class",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
        "options": {
            "config": VegasConfig(num_speculative_tokens=4, kv_budget=0.1).to_dict(),
            "fall_back": True,
            "draft_lengths": [0, 4],
        },
        "backend": "CUSTOM",
        "lookahead": 4,
        "schedule": [(1, config["max_num_seqs"], 4)],
        "max_num_seqs": config["max_num_seqs"],
        "v2": True,
        "arguments_kept": True,
    }


@pytest.mark.parametrize(
    ("policy", "entries", "shown"),
    [("vegas", 40, 40 / 256), ("vegas", 1000, 0.3), ("vegas", 1, 24 / 256), ("stream", 40, 0.3), ("dense", 40, 1.0)],
)
def test_the_budget_that_is_shown_is_what_drafts_read(engines, policy, entries, shown):
    """Not what was asked for where the device has less room, here for so many entries per layer, head and request."""
    tail, lists, requests = 2 * 4, 3 * 2, 4
    room = (entries + tail) * lists * requests * 4
    asked = {**VEGAS, "kv_budget": 0.3, "kv_budget_min": 24, "policy": policy}
    limits = {"max_model_len": 256, "max_num_seqs": requests}
    found = engines.budget_shown("qwen3", math.ceil(room / 0.02), speculative_config=asked, **limits)
    assert found == pytest.approx(shown)


def test_defaults(engines):
    """Only the method is required."""
    config = engines.configure("qwen3", speculative_config={"method": "vegas"})
    assert config["options"] == {"config": VegasConfig().to_dict(), "fall_back": True, "draft_lengths": [0, 6]}


@pytest.mark.parametrize("asked", [{}, {"speculative_config": {"method": "vegas", "policy": "full"}}])
def test_without_vegas_vllm_is_stock(engines, asked):
    """Not asked for, or asked not to speculate."""
    config = engines.configure("qwen3", **asked)
    assert config["method"] is config["options"] is config["backend"] is None
    assert config["lookahead"] == 0


@pytest.mark.parametrize(
    ("asked", "falls_back", "schedule"),
    [
        ({"fall_back": False}, False, None),
        ({"policy": "dense"}, False, None),
        ({"num_speculative_tokens_per_batch_size": [[1, 8, 4]]}, False, [(1, 8, 4)]),
    ],
)
def test_fall_back_that_is_not_wanted(engines, asked, falls_back, schedule):
    """Turned off, or where the user's own schedule decides."""
    config = engines.configure("qwen3", speculative_config={**VEGAS, **asked})
    assert config["options"]["fall_back"] is falls_back
    assert config["schedule"] == schedule


@pytest.mark.parametrize(
    ("asked", "lengths"),
    [
        ({"num_speculative_tokens": 6}, [0, 2, 4, 6]),
        ({"num_speculative_tokens": 16, "fall_back": False}, [6, 11, 16]),
        ({"num_speculative_tokens": 1}, [0, 1]),
    ],
)
def test_adaptive(engines, asked, lengths):
    """The lengths of draft that are chosen among, and so have graphs."""
    config = engines.configure("qwen3", speculative_config={"method": "vegas", "adaptive": True, **asked})
    assert config["options"]["draft_lengths"] == lengths
    assert config["schedule"] == [(1, config["max_num_seqs"], lengths[-1])]


def test_other_methods_are_left_alone(engines):
    """vLLM's own n-gram speculation, with Vegas installed."""
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    config = engines.configure("qwen3", speculative_config=ngram)
    assert config["method"] == "ngram"
    assert config["options"] is None


REFUSED = {
    "unknown": ({"kv_bugdet": 0.1}, "unknown key of speculative_config 'kv_bugdet'; did you mean 'kv_budget'?"),
    "value": ({"kv_budget": 7}, "kv_budget must be a share of the context"),
    "gamma": ({"num_speculative_tokens": 17}, "num_speculative_tokens must be an integer from 1 to 16; got 17"),
    "fall back": ({"fall_back": "no"}, "fall_back must be true or false; got 'no'"),
    "draft model": ({"model": "some/draft"}, "takes no draft model"),
    "rows": ({"rows": "last"}, "got 'last'"),
    "baseline": ({"policy": "oracle"}, "got 'oracle'. The other policies run in the embedded engine"),
    "own choice by scores": (
        {"policy": "toy_policy:Rescored"},
        "the kernels choose the best-scored entries",
    ),
    "no such policy": ({"policy": "toy_policy:Missing"}, "cannot be imported from toy_policy:Missing"),
    "adaptive schedule": (
        {"adaptive": True, "num_speculative_tokens_per_batch_size": [[1, 8, 4]]},
        "both decide how many tokens are drafted",
    ),
    "adaptive dense": ({"adaptive": True, "policy": "dense"}, "whose drafts never gain"),
    "rejection": ({"rejection_sample_method": "fly"}, "changes what the model says"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_options(case):
    """Our options have our errors, and say what to do."""
    wrong, message = REFUSED[case]
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        options.split_options({"method": "vegas", **wrong})


REFUSED_WITH_VLLM = {
    "pipeline": ({"pipeline_parallel_size": 2}, "supports one pipeline stage"),
    "lora": ({"enable_lora": True}, "Merge the adapter into the weights"),
    "backend": ({"attention_backend": "TRITON_ATTN"}, "got attention backend TRITON_ATTN"),
    "additional_config": ({"additional_config": {"vegas": {}}}, "Options of vegas go into speculative_config"),
    "fp8 cache": ({"kv_cache_dtype": "fp8"}, "Use --kv-cache-dtype auto instead"),
    "pooling": ({"runner": "pooling"}, "supports generation"),
    "logits processors": ({"logits_processors": ["some.module:Processor"]}, "Leave --logits-processors out"),
}


@pytest.mark.parametrize("case", REFUSED_WITH_VLLM)
def test_refused_combinations(engines, case):
    """At configuration time, by a sentence that says what is supported and what to do."""
    asked, message = REFUSED_WITH_VLLM[case]
    with pytest.raises(RuntimeError, match=message):
        engines.configure("qwen3", speculative_config=VEGAS, **asked)


def test_every_refusal_has_its_sentence():
    """``vegas X; got Y. Do Z.``"""
    for refusal in refusals.REFUSALS:
        assert refusal.needs.startswith(("supports ", "requires "))
        assert not refusal.instead.endswith(".")


def test_ranks_of_data_parallelism_do_not_adapt():
    """They would draft different lengths, and wait for each other."""
    got = {refusal.got for refusal in refusals.REFUSALS if "adaptive drafts" in refusal.needs}.pop()
    for ranks, adaptive, refused in ((2, True, True), (2, False, False), (1, True, False)):
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_size=ranks),
            additional_config={"vegas": {"config": {"adaptive": adaptive}}},
        )
        assert (got(config) is not None) is refused


@pytest.mark.parametrize("asked", [False, True])
def test_batch_invariance_is_refused(monkeypatch, asked):
    """Asked for by a variable of the environment, which vLLM reads when it is looked at."""
    envs = SimpleNamespace(VLLM_BATCH_INVARIANT=asked)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(envs=envs))
    [refusal] = [refusal for refusal in refusals.REFUSALS if "depend on the batch" in refusal.needs]
    assert refusal.got(None) == ("VLLM_BATCH_INVARIANT=1" if asked else None)


def test_layers_that_are_refused():
    """What only the built model tells: attention that is not ours, and caches that layers share."""
    ours = SimpleNamespace(vegas=None, alibi_slopes=None)
    layer = {"attn_type": "decoder", "kv_sharing_target_layer_name": None}
    refusals.check_layers({"a": SimpleNamespace(impl=ours, **layer)})
    with pytest.raises(ValueError, match="got object in b"):
        refusals.check_layers({"b": SimpleNamespace(impl=object(), **layer)})
    with pytest.raises(ValueError, match="got the KV cache of a in b"):
        refusals.check_layers({"b": SimpleNamespace(impl=ours, **{**layer, "kv_sharing_target_layer_name": "a"})})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-tp", "2", "--port=80", "--max_num_seqs", "8", "-O3", "--speculative-config", '{"kv_budget": 0.1}'], None),
        (["--no-such-option"], "refuses these arguments: unrecognized arguments: --no-such-option"),
        (["-tp", "two"], "invalid int value: 'two'"),
        (["--config", "none.yaml"], "No such file"),
    ],
)
def test_arguments_of_a_server_are_checked_by_vllms_own_parser(engines, arguments, says):
    """Before anything is started, or printed by ``--dry-run``."""
    if says is None:
        assert engines.check_arguments(["some/model", *arguments]) is None
    else:
        with pytest.raises(RuntimeError, match=says):
            engines.check_arguments(["some/model", *arguments])


def test_hooks(engines):
    """This vLLM has all that Vegas needs."""
    assert [check for check in engines.check_hooks() if check[1] != "PASS"] == []


def test_what_is_replaced_says_by_what_and_until_when():
    """And nothing else does."""
    for hook in (*hooks.CONFIGURATION, *hooks.RUNNER, *hooks.CPU, *hooks.CUDA):
        assert bool(hook.by) is bool(hook.until) is (hook.does == "replaced")


def test_registration_is_idempotent(engines):
    """VLLM loads plugins more than once per process."""
    assert engines.register_again()


def test_a_missing_hook_disables_vegas_only(engines):
    """A vLLM that Vegas does not fit still serves; asking for Vegas says what is missing."""
    plain, message = engines.register_without("vllm.config:NoSuchThing")
    assert plain is None
    assert "vllm.config:NoSuchThing not found" in message
    assert "install one of these" in message


def test_disabled_by_environment(monkeypatch):
    """``VEGAS_DISABLE=1`` leaves vLLM untouched: not even looked at."""
    monkeypatch.setenv("VEGAS_DISABLE", "1")
    monkeypatch.setattr(plugin, "hooks", None)
    plugin.register()


def test_gpu_backend_fits(engines):
    """The GPU backend extends vLLM's FlashAttention and leaves nothing open; running it needs a GPU."""
    assert engines.gpu_backend() == ("CUSTOM", "FlashAttentionImpl", [], [])
