"""``vegas bench throughput`` in the embedded engine, on a tiny model."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from vegas_bench.measure import throughput as bench_throughput
from vegas_bench.measure.embedded_engine import decode_run, milliseconds_per_iteration
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.throughput_rows import predicted_speedup
from vegas_bench.results.results import ResultError, load
from vegas_spec import LLM, SamplingParams
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

BENCH = [
    *("--contexts", "300,400", "--batches", "2", "--policies", "full,vegas,dense,quest", "--gammas", "3"),
    *("--max-tokens", "16", "--repeats", "2", "--kv-budget-min", "32"),
]


def test_sides_are_timed_at_every_shape_and_a_killed_run_goes_on(
    chat_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "throughput.json"
    command = ["bench", "throughput", chat_model, *BENCH, "--out", str(out)]
    honest, calls = decode_run, list[Any]()

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return honest(*arguments)

    monkeypatch.setattr(bench_throughput, "decode_run", interrupted)
    assert run(app, command) == 130
    assert "9 measurements are kept" in " ".join(capsys.readouterr().err.split())
    with monkeypatch.context() as elsewhere:  # its library is another workload
        elsewhere.setattr(platform, "python_version", lambda: "3.99.0")
        assert run(app, command) == 2
    assert "another run (different: python)" in " ".join(capsys.readouterr().err.split())
    assert run(app, command) == 0
    assert len(calls) == 2 * 2 * 4 + 1
    assert "decode tokens/s" in capsys.readouterr().out

    result = load(out)
    assert result.settings["sides_ran"] == "in turns"
    assert result.settings["went_on_after_an_interruption"]
    rows = result.rows
    assert [(row.context, row.policy) for row in rows] == [
        (context, policy) for context in (300, 400) for policy in ("full", "vegas", "dense", "quest")
    ]
    for row in rows:
        assert row.batch == 2
        assert len(row.tokens_per_second) == 2
        assert min(row.tokens_per_second) > 0
        assert set(row.milliseconds) == {"draft", "verify", "accept", "select"}
        assert (row.milliseconds["draft"] > 0) == (row.policy != "full")
    full, vegas, dense, quest = rows[:4]
    assert full.config == {}
    assert full.accepted_per_iteration is full.predicted_speedup is full.selection_overhead is None
    assert dense.accepted_per_iteration == pytest.approx(3)
    assert dense.accepted_per_position == [1, 1, 1]
    assert dense.predicted_speedup == pytest.approx(1)
    assert dense.selection_overhead is None
    assert 0 <= vegas.accepted_per_iteration <= 3
    assert vegas.selection_overhead > 0
    assert quest.selection_overhead > 0


def test_a_run_is_timed_while_all_decode(chat_model: str) -> None:
    llm = LLM(chat_model, max_num_seqs=2, policy="dense", num_speculative_tokens=3)
    prompts = llm.prefill([{"prompt_token_ids": list(range(10, 10 + length))} for length in (60, 90)])
    seen: list[float] = []
    measured = decode_run(llm, prompts, SamplingParams(temperature=0, max_tokens=21, ignore_eos=True), seen.append)
    [speed] = measured.tokens_per_second
    assert measured.accepted_per_iteration == 3
    per_iteration = sum(measured.milliseconds[phase] for phase in ("draft", "verify", "accept", "select"))
    # Two requests commit four tokens each; the engine's own clock leaves little of the time out.
    assert 0.5 < speed * per_iteration / 1e3 / 8 <= 1.01
    assert seen == sorted(seen)
    assert seen[-1] == 1
    with pytest.raises(ResultError, match="too short to time"):
        decode_run(llm, prompts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))


def test_an_iterations_time_is_that_of_its_longest_request() -> None:
    """A request that nears its limit drafts one step where the other drafts three."""
    first = [{"draft": 0.0, "verify": 0.0}, {"draft": 0.0, "verify": 0.0}]
    second = [{"draft": 0.3, "verify": 0.1}, {"draft": 0.3, "verify": 0.1}]
    third = [{"draft": 0.4, "verify": 0.2}, {"draft": 0.6, "verify": 0.2}]
    fourth = [{"draft": 0.7, "verify": 0.3}, {"draft": 0.7, "verify": 0.3}]
    found = milliseconds_per_iteration([first, second, third, fourth])
    assert found == {"draft": pytest.approx(300), "verify": pytest.approx(100)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--contexts", "4K"], "--contexts must be whole numbers"),
        (["--engine", "other"], "engine must be one of embedded, vllm"),
        (["--contexts", "300,4K"], "got '4K'"),
        (["--engine-args", '{"a": 1}'], "--engine-args is for vLLM; give --engine vllm"),
        (["--shape", "qwen3-8b"], "--shape is for vLLM; give --engine vllm"),
        (["--cases", "100x1"], "--cases are given instead of --contexts and --batches"),
        (["--contexts", "2000"], "context"),
        (["--workload", "nothing"], "workload must be one of"),
    ],
)
def test_bad_settings_are_refused(
    chat_model: str, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "throughput", chat_model, "--contexts", "100", "--out", str(tmp_path / "a.json"), *flags]
    assert run(app, command) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_prediction_is_the_memory_bound_one() -> None:
    size = ModelSize(weight_bytes=1000, kv_bytes_per_token=1)
    assert predicted_speedup(size, 1000, 9, 6, 5.0, 0.05) == pytest.approx(6 * 10_000 / (10_000 + 6 * (1000 + 450)))
    assert predicted_speedup(size, 1000, 9, 6, None, 0.05) is None
    assert predicted_speedup(ModelSize(0, 0), 1000, 9, 6, 5.0, 0.05) is None


def test_budgets_that_come_to_the_same_entries_are_one_side(
    chat_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    shape = ["--contexts", "150,300", "--max-tokens", "16", "--repeats", "1", "--policies", "vegas,dense"]
    command = ["bench", "throughput", chat_model, *shape, "--gammas", "3", "--out", str(out)]
    assert run(app, [*command, "--budgets", "0.05,0.2,0.9"]) == 0
    said = "a budget of 0.2 comes to the same entries as 0.05 here (kv_budget_min is 256); it is measured once"
    assert said in " ".join(capsys.readouterr().err.split())
    result = load(out)
    assert [row.config["kv_budget"] for row in result.rows if row.context == 300] == [0.05, 0.9, 1.0]
    assert len(result.settings["notes"]) == 1
