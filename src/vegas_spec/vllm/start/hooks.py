"""Whether the running vLLM has what Vegas needs, by presence and by parameter names."""

from __future__ import annotations

from typing import Any, Literal

from vegas_spec.vllm.start.hook_table import CONFIGURATION, CPU, CUDA, RUNNER, Hook

__all__ = ["CONFIGURATION", "CPU", "CUDA", "RUNNER", "Hook"]

Status = Literal["PASS", "WARN", "FAIL"]
Check = tuple[str, Status, str]

TESTED_VERSIONS = ("0.32", "0.33")


def faults(hooks: tuple[Hook, ...]) -> list[str]:
    """What the running vLLM lacks of `hooks`, one line each."""
    found = ((hook, hook.fault()) for hook in hooks)
    return [f"{hook.where} {fault} (needed: {hook.why})" for hook, fault in found if fault]


def mismatch_message(lines: list[str]) -> str:
    """One message that says what is missing and what to do."""
    import vllm

    return (
        f"vegas does not fit vLLM {vllm.__version__}: {'; '.join(lines)}. "
        f"Tested with vLLM {', '.join(TESTED_VERSIONS)}: install one of these, or serve without vegas."
    )


def platform_hooks() -> tuple[Hook, ...]:
    """The hooks of the platform that vLLM runs on here, beyond those that every platform needs."""
    from vllm.platforms import current_platform

    platform: Any = current_platform
    return CPU if platform.is_cpu() else CUDA


def check_hooks() -> list[Check]:
    """Every hook as ``(name, status, detail)``, and the version first: for ``vegas doctor``."""
    try:
        import vllm
    except ImportError as error:
        return [("vllm", "FAIL", f"not installed ({error}); pip install 'vegas-spec[vllm]'")]
    tested = vllm.__version__.startswith(TESTED_VERSIONS)
    checks: list[Check] = [
        (
            "vllm version",
            "PASS" if tested else "WARN",
            vllm.__version__ if tested else f"{vllm.__version__}; tested with {', '.join(TESTED_VERSIONS)}",
        )
    ]
    for hook in (*CONFIGURATION, *RUNNER, *platform_hooks()):
        fault = hook.fault()
        checks.append((hook.where, "FAIL" if fault else "PASS", fault or hook.why))
    return checks
