"""The measuring process of `vegas bench throughput --engine vllm`, with vLLM's CPU build."""

import serving_models
from engine_process import child_environment
from serving_prompts import prompts

from vegas_bench.measure.vllm_side import Case, measure_side, speculative_config
from vegas_spec.config import VegasConfig


def test_a_side_is_measured(model_folder, tmp_path, monkeypatch):
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    engine = {
        "model": str(serving_models.save_tiny_model("qwen3", model_folder)),
        "speculative_config": speculative_config(VegasConfig(policy="dense", num_speculative_tokens=2)),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 128,
        "max_num_seqs": 2,
    }
    cases = [Case("both", [list(prompt) for prompt in prompts(20, 30)], 0.0)]
    size, (key, measured) = measure_side(engine, cases, 20, 1, tmp_path / "vllm.log")
    weights = 3 * (64 * 128 * 2 + 2 * 64 * 64 + 3 * 64 * 96) + serving_models.VOCAB * 64  # norms are not counted
    assert size.weight_bytes == 4 * weights
    assert size.kv_bytes_per_token == 4 * 3 * 2 * 2 * 32
    assert key == "both"
    assert len(measured.tokens_per_second) == 1
    assert min(measured.tokens_per_second) > 0
    assert measured.accepted_per_iteration > 1.9  # drafts that read everything
    assert len(measured.accepted_per_position) == 2
    assert measured.milliseconds is None  # no GPU, no events
