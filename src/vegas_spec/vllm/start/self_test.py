"""What runs in a process of its own for ``vegas doctor``: the hooks of this vLLM, or generation with and without Vegas.

``python -m vegas_spec.vllm.start.self_test RESULT [MODEL]`` writes its result as JSON: with ``hooks`` for a model, the
checks of every hook; else what was generated, with a tiny random model if none is named.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMPT_TOKENS = (500, 60)
MAX_TOKENS = 16
LOGPROBS = 5
VEGAS = {"method": "vegas", "kv_budget": 0.1, "kv_budget_min": 64, "fall_back": False}
"""Small enough to leave most of a prompt out of the draft, and with drafts whatever they cost."""


def check_hooks() -> dict[str, Any]:
    """Every hook, as `hooks.check_hooks` gives them."""
    from vegas_spec.vllm.start import hooks

    return {"hooks": hooks.check_hooks()}


def generate_both(model: str | None) -> dict[str, Any]:
    """Generate greedily without Vegas and with it.

    Returns
    -------
    dict
        ``platform`` and ``dtype``; under ``plain`` and ``vegas`` each prompt's ``tokens`` and, by position, the
        ``logprobs`` of the likeliest tokens; ``drafted`` and ``accepted``.

    """
    from vllm.platforms import current_platform

    platform: Any = current_platform
    result: dict[str, Any] = {"platform": "cpu" if platform.is_cpu() else platform.get_device_name()}
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"max_num_seqs": 4, "seed": 0, "disable_log_stats": False}
        if platform.is_cpu():
            options |= {"dtype": "float32", "enforce_eager": True}
        if model is None:
            import torch

            from vegas_spec.vllm.start.tiny_model import save_tiny_model

            save_tiny_model(Path(folder), torch.float32 if platform.is_cpu() else torch.bfloat16)
            options |= {"model": folder, "skip_tokenizer_init": True, "gpu_memory_utilization": 0.2}
        else:
            options |= {"model": model}
        # Vegas first: where it is refused, nothing else needs to run.
        for name, more in (("vegas", {"speculative_config": VEGAS}), ("plain", {})):
            result |= _generate(name, model is None, {**options, "max_model_len": 1024, **more})
    return result


def _generate(name: str, tiny: bool, options: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(**options)
    sampling = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=LOGPROBS, detokenize=not tiny
    )
    prompts = [{"prompt_token_ids": tokens} for tokens in (_random_prompts() if tiny else _source_prompts(llm))]
    outputs = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
    generated = [
        {
            "tokens": list(output.token_ids),
            "logprobs": [{str(token): entry.logprob for token, entry in step.items()} for step in output.logprobs],
        }
        for output in outputs
    ]
    found: dict[str, Any] = {name: generated, "dtype": str(llm.model_config.dtype).removeprefix("torch.")}
    if name == "vegas":
        counted = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        found["drafted"] = int(counted["vllm:spec_decode_num_draft_tokens"])
        found["accepted"] = int(counted["vllm:spec_decode_num_accepted_tokens"])
    llm.llm_engine.engine_core.shutdown()
    return found


def _random_prompts() -> list[list[int]]:
    from vegas_spec.vllm.start.tiny_model import VOCAB

    numbers = random.Random(0)
    return [[numbers.randrange(2, VOCAB) for _ in range(length)] for length in PROMPT_TOKENS]


def _source_prompts(llm: Any) -> list[list[int]]:
    """Python's own source, as much of it as is wanted."""
    source = inspect.getsource(inspect)
    tokens = llm.get_tokenizer().encode(source[: 8 * max(PROMPT_TOKENS)])
    return [tokens[:length] for length in PROMPT_TOKENS]


def main(result: str, model: str | None = None) -> None:
    """Write what was found, or what went wrong, to the file `result`."""
    try:
        found = check_hooks() if model == "hooks" else generate_both(model)
    except Exception as error:  # whatever goes wrong in vLLM is the finding
        found = {"error": f"{type(error).__name__}: {error}"}
        Path(result).write_text(json.dumps(found), encoding="utf-8")
        raise
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
