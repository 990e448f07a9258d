"""One request of 2K context on a real model of 0.5B parameters, where ``vegas models fetch`` has brought it."""

import pytest
from engine_process import EngineProcess

from vegas_spec.models import is_fetched, model_folder

NAME = "qwen2.5-coder-0.5b"

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not is_fetched(NAME), reason=f"needs: vegas models fetch {NAME}"),
]


def run(folder, **options):
    """The output and the counters of an engine that ends thereafter: two at once would fill a small machine."""
    process = EngineProcess(folder, OMP_NUM_THREADS="2")
    try:
        limits = {"max_model_len": 2304, "max_num_seqs": 2, "max_num_batched_tokens": 512}
        process.start("engine", model_folder(NAME), **limits, **options)
        tokens = process.source_tokens("engine", 2048)
        return process.generate("engine", [tokens], {"max_tokens": 32}), process.counters("engine")
    finally:
        process.close()


def test_real_model(tmp_path):
    """Identical to stock vLLM in float32, with drafts over the default budget, most of which are accepted."""
    expected, _ = run(tmp_path)
    outputs, counters = run(tmp_path, speculative_config={"method": "vegas", "fall_back": False})
    assert outputs == expected
    assert counters["accepted"] > counters["drafted"] / 2
