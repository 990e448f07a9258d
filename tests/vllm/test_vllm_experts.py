"""gpt-oss: mixture of experts, attention sinks, two KV cache groups.

A process of its own: vLLM makes the process groups that experts need only if its first model has some.
"""

import pytest
from conftest import EngineProcess
from test_vllm_greedy import VEGAS, prompts


@pytest.fixture(scope="module")
def experts(model_folder):
    process = EngineProcess(model_folder)
    yield process
    process.close()


def test_gpt_oss(experts):
    """Greedy output equals stock vLLM's."""
    options = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 40}
    experts.start("plain", "gpt_oss", **options)
    experts.start("vegas", "gpt_oss", speculative_config=VEGAS, **options)
    tokens = prompts(1, 40, 90, 150)
    expected = experts.generate("plain", tokens, {"max_tokens": 16})
    assert experts.generate("vegas", tokens, {"max_tokens": 16}) == expected
    assert experts.counters("vegas")["spec_decode_num_accepted_tokens"] > 0
