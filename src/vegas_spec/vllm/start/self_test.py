"""vLLM as ``vegas doctor`` sees it: whether it has what Vegas needs, and whether it says the same with and without it.

vLLM runs in a process of its own, so that whatever is wrong with it is a line of the report:
``python -m vegas_spec.vllm.start.self_test RESULT hooks`` or ``RESULT generate [MODEL]`` writes what it found as JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vegas_spec.ties import tie_gap
from vegas_spec.vllm.start.hooks import Status

PROMPT_TOKENS = (500, 60)
"""Lengths of its prompts: one that the budget leaves most of out, and one that it holds whole."""

MAX_TOKENS, LOGPROBS = 16, 5
"""Tokens that each is continued by, and likeliest ones that a gap is looked up in: a run of seconds. Chosen by hand."""

VEGAS = {"method": "vegas", "kv_budget": 0.1, "kv_budget_min": 64, "fall_back": False}
"""Small enough to leave most of a prompt out of the draft, and with drafts whatever they cost."""

_NEEDS_V2 = "requires vLLM's V2 model runner"


def check_hooks() -> list[tuple[str, Status, str]]:
    """Every hook of the installed vLLM as ``(name, status, detail)``."""
    found, log = run_apart("hooks")
    log.unlink(missing_ok=True)
    if "error" in found:
        return [("hooks", "FAIL", f"vLLM does not import: {found['error']}")]
    return [("hook", status, f"{name}: {detail}") for name, status, detail in found["hooks"] if name != "vllm version"]


def run(model: str | None) -> tuple[Status, str]:
    """Generate with and without Vegas, and compare.

    Parameters
    ----------
    model : str or None
        A hub id or folder that vLLM can serve here; None for a tiny random model.

    """
    found, log = run_apart("generate", *([] if model is None else [model]))
    if "error" not in found:
        log.unlink(missing_ok=True)
    return judge(found, model or "a tiny random model", log)


def run_apart(*arguments: str) -> tuple[dict[str, Any], Path]:
    """Run `main` in a process of its own; give its result, and where its log is."""
    descriptor, log = tempfile.mkstemp(prefix="vegas-doctor-", suffix=".log")
    with tempfile.TemporaryDirectory() as folder, os.fdopen(descriptor, "wb") as output:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "vegas_spec.vllm.start.self_test", str(result), *arguments]
        # What turns the plugin off for servers must not turn off its test.
        environment = {name: value for name, value in os.environ.items() if name != "VEGAS_DISABLE"}
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False).returncode
        if not result.exists():
            return {"error": f"the process ended with exit code {code}"}, Path(log)
        return json.loads(result.read_text(encoding="utf-8")), Path(log)


def judge(found: Mapping[str, Any], model: str, log: Path) -> tuple[Status, str]:
    """One line about what `generate_both` found."""
    if "error" in found:
        if _NEEDS_V2 in found["error"]:
            return ("WARN", f"not run: Vegas {_NEEDS_V2}, which does not run here; {log}")
        return ("FAIL", f"{found['error'].splitlines()[0]}; vLLM's log: {log}")
    if found["drafted"] == 0:
        return ("FAIL", f"nothing was drafted with {model}")
    tokens, ties = 0, 0
    for prompt, (plain, vegas) in enumerate(zip(found["plain"], found["vegas"], strict=True)):
        same, gap = compare(plain, vegas)
        tokens += same
        if gap is not None and gap > tie_gap(found["dtype"]):
            return (
                "FAIL",
                f"with {model}, prompt {prompt} departs at token {same}, and not at a tie: logits {gap:.2f} apart",
            )
        ties += gap is not None
    detail = f"{tokens} tokens are the same with and without Vegas: {model}, {found['dtype']}, {found['platform']}"
    if ties:
        detail += f"; {ties} of {len(found['plain'])} outputs part at a numerical tie"
    return ("PASS", f"{detail}; {found['accepted']} of {found['drafted']} drafts accepted")


def compare(plain: Mapping[str, Any], vegas: Mapping[str, Any]) -> tuple[int, float | None]:
    """Compare two outputs for one prompt.

    Returns
    -------
    tuple
        How many tokens are the same from the start; and by how much the plain run's logits of the two tokens differ
        where the outputs part: None if they do not, infinite if the other token is not even among its likeliest.

    """
    for position, (wanted, got) in enumerate(zip(plain["tokens"], vegas["tokens"], strict=True)):
        if wanted != got:
            logprobs = plain["logprobs"][position]
            return position, logprobs[str(wanted)] - logprobs.get(str(got), -float("inf"))
    return len(plain["tokens"]), None


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


def main(result: str, what: str, model: str | None = None) -> None:
    """Write what was found, or what went wrong, to the file `result`."""
    from vegas_spec.vllm.start import hooks

    found: dict[str, Any] = {}
    try:
        found = {"hooks": hooks.check_hooks()} if what == "hooks" else generate_both(model)
    except Exception as error:  # whatever goes wrong in vLLM is the finding
        found = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
