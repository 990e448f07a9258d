"""``vegas bench throughput --engine vllm`` and ``soak`` with vLLM's CPU build."""

import json

import pytest
import serving_models
from engine_process import child_environment

from vegas_bench.results.results import load
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

ENGINE = {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 128 * 2**20}


@pytest.fixture(autouse=True)
def environment_of_engines(monkeypatch):
    # Without it the engines' own kv_cache_memory_bytes counts.
    for name, value in child_environment(VLLM_CPU_KVCACHE_SPACE=None).items():
        monkeypatch.setenv(name, value)


def bench(name, out, *flags, **engine):
    shared = ["--dtype", "float32", "--engine-args", json.dumps({**ENGINE, **engine}), "--out", str(out)]
    return run(app, ["bench", name, *flags, *shared])


def test_a_model(model_folder, tmp_path):
    model = str(serving_models.save_tiny_model("qwen3", model_folder))
    flags = ["--engine", "vllm", "--policies", "dense", "--gammas", "2", "--cases", "60x2", "--workload", "texts"]
    flags += ["--max-tokens", "20", "--repeats", "2", "--first-token", "40", "--profile"]
    assert bench("throughput", tmp_path / "a.json", model, *flags) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    result = load(tmp_path / "a.json")
    [row] = result.rows
    assert len(row.tokens_per_second) == 2
    assert min(row.tokens_per_second) > 0
    assert row.accepted_per_iteration > 1.9  # drafts that read everything
    assert len(row.accepted_per_position) == 2
    assert row.milliseconds is None  # no GPU, no events
    [side] = result.settings["sides"].values()
    weights = 3 * (64 * 128 * 2 + 2 * 64 * 64 + 3 * 64 * 96) + serving_models.VOCAB * 64  # norms are not counted
    assert side["size"] == {"weight_bytes": 4 * weights, "kv_bytes_per_token": 4 * 3 * 2 * 2 * 32}
    assert side["kv_blocks"] > 10
    assert len(side["seconds_to_first_token"]["40"]) == 4
    [profile] = side["profile"].values()
    assert profile["kernels"][0]["milliseconds"] > 0
    assert profile["host"][0]["milliseconds"] > 0


def test_a_shape_with_imposed_acceptance(tmp_path):
    """gpt-oss as published but for its size: YaRN, sinks, windows, experts, a cache that is filled with noise."""
    small = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "hidden_size": 64}
    small |= {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    small |= {"num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": serving_models.VOCAB}
    flags = ["--engine", "vllm", "--shape", "gpt-oss-20b", "--cases", "300x2", "--acceptance", "1,0.5,0"]
    flags += ["--policies", "vegas", "--max-tokens", "40", "--repeats", "1", "--kv-budget-min", "16"]
    flags += ["--hf-overrides", json.dumps(small)]
    assert bench("throughput", tmp_path / "a.json", *flags) == 0
    [row] = load(tmp_path / "a.json").rows
    first, second, third = row.accepted_per_position
    assert first > 0.9  # but for what comes after the last token that is wanted
    assert third == 0
    assert 0.2 < second < 0.8
    assert row.config["synthetic_acceptance_rates"] == [1, 0.5, 0]


def test_a_soak(model_folder, tmp_path, capsys):
    model = str(serving_models.save_tiny_model("qwen3", model_folder))
    flags = ["--policy", "vegas:kv_budget_min=8:kv_budget=0.6", "--seconds", "2", "--rate", "4", "--seed", "5"]
    flags += ["--min-prompt-tokens", "10", "--max-prompt-tokens", "120", "--max-tokens", "16", "--max-num-seqs", "4"]
    assert bench("soak", tmp_path / "a.json", model, *flags) == 0
    stored = json.loads((tmp_path / "a.json").read_text())
    served, judged = stored["served"], stored["judged"]
    assert served["aborted"] > 0
    assert served["sent"] == served["finished"] + served["aborted"] == judged["requests"] + served["aborted"]
    assert served["drafts"] > 10
    assert 0 < served["accepted_per_iteration"] < 6
    assert judged["faults"] == []
    assert judged["tie"] == 1e-3  # of float32
    assert stored["failure"] is None
    assert "passed" in capsys.readouterr().out
