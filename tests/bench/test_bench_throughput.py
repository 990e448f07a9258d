"""``vegas bench throughput``: the embedded engine on a tiny model; vLLM's sides with a process in its place."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vegas_bench.measure import embedded_engine as decode_speed
from vegas_bench.measure import throughput as bench_throughput
from vegas_bench.measure import vllm_side
from vegas_bench.measure.embedded_engine import decode_run
from vegas_bench.measure.model_size import ModelSize
from vegas_bench.measure.throughput import measure_vllm
from vegas_bench.measure.throughput_rows import Shape, predicted_speedup
from vegas_bench.measure.variants import variants
from vegas_bench.measure.vllm_side import Case, SideMeasurement, measure_side, speculative_config
from vegas_bench.results.journal import Journal
from vegas_bench.results.results import ResultError, load
from vegas_bench.tune import vllm_speed
from vegas_spec import LLM, SamplingParams, VegasConfig
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.config import ConfigError

# --- the embedded engine --------------------------------------------------------------------------------------------

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
    assert run(app, command) == 0
    assert len(calls) == 2 * 2 * 4 + 1
    assert "decode tokens/s" in capsys.readouterr().out

    rows = load(out).rows
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
    assert measured.accepted_per_iteration == 3
    per_iteration = sum(measured.milliseconds[phase] for phase in ("draft", "verify", "accept", "select"))
    # Two requests commit four tokens each; the engine's own clock leaves little of the time out.
    assert 0.5 < measured.tokens_per_second * per_iteration / 1e3 / 8 <= 1.01
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
    found = decode_speed._milliseconds([first, second, third, fourth])
    assert found == {"draft": pytest.approx(300), "verify": pytest.approx(100)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--contexts", "4K"], "--contexts must be whole numbers"),
        (["--engine", "other"], "engine must be one of embedded, vllm"),
        (["--engine-args", "{"], "--engine-args must be a JSON object"),
        (["--engine-args", '{"a": 1}'], "--engine-args are vLLM's"),
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


# --- vLLM -----------------------------------------------------------------------------------------------------------

STAND_IN = """
    import json, sys
    job = json.load(open(sys.argv[-1]))
    print("a line of vLLM's log")
    if job["engine"].get("broken"):
        sys.exit("the engine did not start")
    with open(job["out"], "a") as out:
        print(json.dumps({"size": {"weight_bytes": 10, "kv_bytes_per_token": 1}}), file=out, flush=True)
        for case in job["cases"]:
            measured = {
                "tokens_per_second": [float(len(case["prompts"]))] * job["repeats"],
                "accepted_per_iteration": case["temperature"],
                "accepted_per_position": None,
                "milliseconds": None,
            }
            print(json.dumps({"key": case["key"], "measured": measured}), file=out, flush=True)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in Python's place that answers as `vegas_bench.measure.vllm_engine` does."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{textwrap.dedent(STAND_IN)}")
    script.chmod(0o755)
    monkeypatch.setattr(vllm_side, "sys", type("Sys", (), {"executable": str(script)}))


@pytest.mark.usefixtures("stand_in")
def test_a_side_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    cases = [Case("one", [[1, 2]], 0.0), Case("two", [[1], [2]], 0.5)]
    assert list(measure_side({}, cases, 8, 3, log)) == [
        ModelSize(10, 1),
        ("one", SideMeasurement([1.0] * 3, 0.0, None, None)),
        ("two", SideMeasurement([2.0] * 3, 0.5, None, None)),
    ]
    assert not log.exists()
    with pytest.raises(
        ResultError, match=r"(?s)exit code 1; its log, .*vllm.log, ends with:.*the engine did not start"
    ):
        list(measure_side({"broken": True}, cases, 8, 3, log))
    assert "a line of vLLM's log" in log.read_text()


def test_policies_in_vllms_words() -> None:
    [full, vegas] = variants(["full", "vegas"], kv_budget_min=64)
    assert speculative_config(full.config) is None
    asked = speculative_config(vegas.config)
    assert asked is not None
    assert asked["method"] == "vegas"
    assert asked["fall_back"] is False
    assert asked["kv_budget_min"] == 64
    with pytest.raises(ConfigError, match="vLLM"):
        speculative_config(VegasConfig(policy="oracle"))


def test_vllm_rows_compare_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = {"full": None, "dense": {"draft": 30.0, "verify": 10.0}, "vegas": {"draft": 6.0, "verify": 10.8}}
    asked: list[tuple[str, int]] = []

    def side(engine: Any, cases: Any, max_tokens: int, repeats: int, log: Path) -> Iterator[Any]:
        policy = (engine["speculative_config"] or {"policy": "full"})["policy"]
        yield ModelSize(1000, 1)
        for case in cases:
            asked.append((policy, len(case.prompts)))
            if len(asked) == 5:
                raise KeyboardInterrupt
            accepted = None if policy == "full" else 5.0
            yield case.key, SideMeasurement([10.0] * repeats, accepted, None, verify[policy])

    monkeypatch.setattr(bench_throughput, "measure_side", side)
    compared = variants(["full", "vegas", "dense"], kv_budget_min=1)
    shapes = [Shape(1000, 3, 0.0), Shape(1000, 9, 0.0)]

    def measure() -> list[Any]:
        with Journal(tmp_path / "journal", {}) as journal:
            return measure_vllm(
                compared, shapes, lambda context, batch: [[0] * context] * batch, 8, 2, {}, tmp_path / "log", journal
            )

    with pytest.raises(KeyboardInterrupt):
        measure()
    rows = measure()
    assert asked == [("full", 3), ("full", 9), ("vegas", 3), ("vegas", 9), ("dense", 3), ("dense", 3), ("dense", 9)]
    assert [(row.batch, row.policy) for row in rows] == [(b, p) for b in (3, 9) for p in ("full", "vegas", "dense")]
    vegas = rows[4]
    assert vegas.selection_overhead == pytest.approx(0.08)
    assert vegas.predicted_speedup == pytest.approx(6 * 10_000 / (10_000 + 6 * (1000 + 450)))
    assert rows[5].selection_overhead is None
    assert rows[5].predicted_speedup == pytest.approx(6 / 7)


def test_selection_within_drafts_is_not_measured_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def side(engine: Any, cases: Any, max_tokens: int, repeats: int, log: Path) -> Iterator[Any]:
        yield ModelSize(1000, 1)
        for case in cases:
            yield case.key, SideMeasurement([10.0], 5.0, None, {"draft": 30.0, "verify": 10.0})

    monkeypatch.setattr(bench_throughput, "measure_side", side)
    compared = variants(["vegas", "quest", "specextend", "stream"], kv_budget_min=1)
    with Journal(tmp_path / "journal", {}) as journal:
        rows = measure_vllm(compared, [Shape(1000, 1, 0.0)], lambda *shape: [[0]], 8, 1, {}, tmp_path / "log", journal)
    assert [row.selection_overhead for row in rows] == [0.0, None, None, None]


def test_tuning_asks_vllm_for_each_setting_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def side(engine: Any, cases: Any, max_tokens: int, repeats: int, log: Path) -> Iterator[Any]:
        asked.append(engine["speculative_config"])
        yield ModelSize(1000, 1)
        yield cases[0].key, SideMeasurement([10.0, 12.0], None, None, None)

    monkeypatch.setattr(vllm_speed, "measure_side", side)
    with Journal(tmp_path / "journal", {}) as journal:
        measure = vllm_speed.VllmSpeed({"model": "m"}, [[1]], 0.0, 8, 2, tmp_path / "log", journal)
        plain = measure(VegasConfig(policy="full"))
        assert dataclasses.asdict(plain)["accepted_per_iteration"] == 0.0
        assert plain.speed == 11
        measure(VegasConfig(kv_budget=0.1))
        measure(VegasConfig(kv_budget=0.1))
    assert [None if each is None else each["kv_budget"] for each in asked] == [None, 0.1]
    assert json.loads((tmp_path / "journal").read_text().splitlines()[-1])["key"] == "vegas gamma=6 budget=0.1"
