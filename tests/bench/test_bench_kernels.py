"""``vegas bench kernels``: the calls that it times do run, and it says that it needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from vegas_bench.cli import runs
from vegas_bench.cli.bench_kernels import table, tuning_table
from vegas_bench.measure.kernels.bench import measure_case
from vegas_bench.measure.kernels.cases import CASES, QUERY_LEN, Case
from vegas_bench.measure.kernels.tune import GRID, time_tunings
from vegas_bench.results.results import load
from vegas_spec.cli import app
from vegas_spec.cli.errors import run


def test_every_call_of_a_case_runs(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("small", 4, 2, 64, 2, 512)
    called: list[int] = []

    def milliseconds(calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        called.append(len(calls))
        return 2.0

    row = measure_case(case, 1e6, torch.device("cpu"), milliseconds)
    assert (row.case, row.batch, row.context) == ("small 2 x 0K", 2, 512)
    times = row.milliseconds
    assert times["floor"] == pytest.approx(2 * 512 * 4 * 2 * 64 / 1e6 * 1e3)
    assert times["sparse_floor_5%"] == pytest.approx(times["floor"] * (256 + QUERY_LEN - 1) / 512)
    measured = [name for name in times if "floor" not in name]
    assert len(measured) == len(called) == 1 + 3 * 2 + 2 + 2 * 2 + 1
    assert all(times[name] == 2.0 for name in measured)
    assert row.bytes["index_bytes_per_layer"] == 2 * 2 * (256 + 12) * 4
    runs.print_table(table([row]))
    assert "the bandwidth floor" in capsys.readouterr().out


@pytest.mark.parametrize("kernel", ["verify", "sparse"])
def test_configurations_are_timed_beside_the_shipped_one(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    case, times = Case("small", 4, 2, 64, 2, 512), iter([2.0, 1.0, 3.0])

    def milliseconds(calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        return next(times)

    row = time_tunings(case, kernel, GRID[kernel][:2], torch.device("cpu"), milliseconds)
    assert list(row.milliseconds.values()) == [2.0, 1.0, 3.0]
    assert next(iter(row.milliseconds)) == "shipped"
    runs.print_table(tuning_table([row]))
    shown = capsys.readouterr().out
    assert shown.index("1000.0") < shown.index("shipped") < shown.index("3000.0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["bench", "kernels", "--out", str(tmp_path / "k.json")]) == 2
    assert "torch sees none" in " ".join(capsys.readouterr().err.split())
    assert run(app, ["bench", "kernels", "--only", "nothing", "--out", str(tmp_path / "k.json")]) == 2
    assert "the cases are Qwen3-8B 16 x 16K" in " ".join(capsys.readouterr().err.split())
    assert run(app, ["bench", "kernels", "--tune", "nothing", "--out", str(tmp_path / "k.json")]) == 2
    assert "--tune must be one of verify, sparse; got 'nothing'" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "k.json"
    assert run(app, ["bench", "kernels", "--only", "1 x 128K", "--out", str(out)]) == 0
    rows = load(out).rows
    assert [row.case for row in rows] == [case.name for case in CASES if "1 x 128K" in case.name] != []
    for row in rows:
        times = row.milliseconds
        # Nothing is faster than memory, and what reads a twentieth of the cache is faster than what reads all of it.
        assert all(time >= 0.9 * times["floor"] for name, time in times.items() if name.startswith("verify"))
        assert 0 < times["sparse_floor_5%"] <= times["sparse_kv_head_5%"] < times["verify_plain"] / 2
        assert 0 < times["select_weight"] < times["verify_plain"]
    out = tmp_path / "t.json"
    assert run(app, ["bench", "kernels", "--tune", "sparse", "--only", "Qwen3-8B 1 x 128K", "--out", str(out)]) == 0
    assert all({"shipped"} < set(row.milliseconds) for row in load(out).rows)
