"""One request of 2K context on a real model of 0.5B parameters, where ``vegas models fetch`` has brought it."""

import pytest
from engine_process import EngineProcess

from vegas_spec.models import is_fetched, model_folder

NAME = "qwen2.5-coder-0.5b"

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not is_fetched(NAME), reason=f"needs: vegas models fetch {NAME}"),
]


def test_real_model(tmp_path):
    """Identical to stock vLLM in float32, with drafts over the default budget, most of which are accepted."""
    process = EngineProcess(tmp_path, VLLM_CPU_KVCACHE_SPACE="2", OMP_NUM_THREADS="2")
    try:
        limits = {"max_model_len": 2304, "max_num_seqs": 2, "max_num_batched_tokens": 512}
        process.start("plain", model_folder(NAME), **limits)
        tokens = process.source_tokens("plain", 2048)
        expected = process.generate("plain", [tokens], {"max_tokens": 32})
        vegas = {"method": "vegas", "fall_back": False}
        process.start("vegas", model_folder(NAME), speculative_config=vegas, **limits)
        assert process.generate("vegas", [tokens], {"max_tokens": 32}) == expected
        counters = process.counters("vegas")
        assert counters["accepted"] > counters["drafted"] / 2
    finally:
        process.close()
