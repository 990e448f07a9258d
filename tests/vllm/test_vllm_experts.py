"""gpt-oss: mixture of experts, attention sinks, two KV cache groups.

A process of its own: vLLM makes the process groups that experts need only if its first model has some.
"""

from serving_prompts import VEGAS, prompts


def test_gpt_oss(own_engines):
    """Greedy output equals stock vLLM's."""
    options = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 40}
    own_engines.start("plain", "gpt_oss", **options)
    own_engines.start("vegas", "gpt_oss", speculative_config=VEGAS, **options)
    tokens = prompts(1, 40, 90, 150)
    expected = own_engines.generate("plain", tokens, {"max_tokens": 16})
    assert own_engines.generate("vegas", tokens, {"max_tokens": 16}) == expected
    assert own_engines.counters("vegas")["accepted"] > 0
