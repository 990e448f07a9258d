"""The paper's claims: what is computed of results, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import report_cases as cases
from typer.main import get_command

from vegas_bench import claims
from vegas_bench.claims import (
    acceptance_vs_stream,
    collect_two_queries,
    context_growth,
    selection_in_kernels,
    selection_overhead,
    throughput_vs_best,
)
from vegas_bench.measure.variants import variants
from vegas_bench.measure.vllm_side import speculative_config
from vegas_bench.report.loading import Source
from vegas_bench.results.results import save
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

CLAIMS = {
    "acceptance_vs_stream": acceptance_vs_stream.CLAIM,
    "collect_two_queries": collect_two_queries.CLAIM,
    "context_growth": context_growth.CLAIM,
    "selection_in_kernels": selection_in_kernels.CLAIM,
    "selection_overhead": selection_overhead.CLAIM,
    "throughput_vs_best": throughput_vs_best.CLAIM,
}


def with_all_rows(difference: float) -> Any:
    """Acceptance results in which all rows are this much better than two, at every prompt."""
    result = cases.acceptance(prompts=6, sweep=False)
    own = [row for row in result.rows if row.policy == "vegas"]
    own = [dataclasses.replace(row, accepted_per_iteration=4 + 0.1 * place) for place, row in enumerate(own)]
    other = [
        dataclasses.replace(
            row, policy="vegas:rows=all", accepted_per_iteration=row.accepted_per_iteration + difference
        )
        for row in own
    ]
    return dataclasses.replace(result, rows=own + other)


def test_what_was_not_measured_is_said_to_be_so():
    page = claims.markdown([])
    assert page.count("**Not measured yet.**") == len(claims.CLAIMS) == len(CLAIMS)
    assert page.count("vegas bench acceptance MODEL") == 2
    assert page.count("vegas bench throughput MODEL") == 3
    assert page.count("\nvegas bench kernels\n") == 1
    assert "|---|" not in page


def test_acceptance_against_stream():
    result = cases.acceptance(prompts=8)
    found = list(CLAIMS["acceptance_vs_stream"].measure(result))
    assert len(found) == 6  # one per draft length and budget
    by = {
        policy: [
            row.accepted_per_iteration
            for row in result.rows
            if row.policy == policy and (row.config["num_speculative_tokens"], row.config["kv_budget"]) == (6, 0.05)
        ]
        for policy in ("vegas", "stream")
    }
    ratio = statistics.fmean(by["vegas"]) / statistics.fmean(by["stream"])
    assert found[0].ours.startswith(f"{ratio:.2f}x (")
    assert found[0].verdict == "above the paper's"
    assert "8 prompts" in found[0].where


def test_throughput_is_compared_with_the_best():
    result = cases.throughput()
    found = list(CLAIMS["throughput_vs_best"].measure(result))
    assert len(found) == 4
    rows = [row for row in result.rows if (row.context, row.batch) == (16_384, 16)]
    speeds = {row.policy: statistics.median(row.tokens_per_second) for row in rows}
    best = max((name for name in speeds if name != "vegas"), key=speeds.__getitem__)
    assert found[0].where.endswith(f"the best is {best}")
    assert found[0].ours == f"{speeds['vegas'] / speeds[best]:.2f}x"
    alone = dataclasses.replace(result, rows=[row for row in result.rows if row.policy in ("vegas", "full")])
    assert list(CLAIMS["throughput_vs_best"].measure(alone)) == []


def test_a_baseline_that_is_faster_is_told():
    result = cases.throughput()
    rows = [
        dataclasses.replace(row, tokens_per_second=[1e6]) if row.policy == "full" and row.batch == 4 else row
        for row in result.rows
    ]
    found = list(CLAIMS["throughput_vs_best"].measure(dataclasses.replace(result, rows=rows)))
    assert found[-1].where.endswith("the best is full")
    assert found[-1].verdict == "below the paper's"


def test_selection_overhead():
    found = list(CLAIMS["selection_overhead"].measure(cases.throughput()))
    assert len(found) == 4 * 3  # vegas, quest and specextend; stream selects for nothing
    assert {(each.where.split(",")[0], each.ours, each.verdict) for each in found} == {
        ("vegas", "6.0 %", "within the paper's"),
        ("quest", "6.0 %", "below the paper's"),
        ("specextend", "6.0 %", "below the paper's"),
    }


def test_selection_in_kernels():
    result = cases.kernels()
    found = list(CLAIMS["selection_in_kernels"].measure(result))
    assert [(each.where, each.ours, each.verdict) for each in found] == [
        (row.case, "7.7 %", "within the paper's")
        for row in result.rows  # 0.28 against 0.26 ms
    ]
    without = [dataclasses.replace(row, milliseconds={"verify_select_weight": 0.28}) for row in result.rows]
    assert list(CLAIMS["selection_in_kernels"].measure(dataclasses.replace(result, rows=without))) == []


@pytest.mark.parametrize(
    ("difference", "verdict", "ours"),
    [(0.3, "all rows better", "-0.30"), (-0.2, "two rows better", "+0.20"), (0.0, "no difference shown", "+0.00")],
)
def test_two_rows_against_all(difference: float, verdict: str, ours: str):
    [found] = CLAIMS["collect_two_queries"].measure(with_all_rows(difference))
    assert found.verdict == verdict
    assert found.ours.startswith(f"{ours} accepted")


def test_growth_with_the_context():
    result = cases.throughput()
    [found] = CLAIMS["context_growth"].measure(result)
    assert found.where == "batch 16"
    assert found.verdict == "grows"
    assert [part.split()[0] for part in found.ours.split(", ")] == ["16K", "32K", "64K"]
    slower = [
        dataclasses.replace(row, tokens_per_second=[1.0]) if (row.policy, row.context) == ("vegas", 65_536) else row
        for row in result.rows
    ]
    [found] = CLAIMS["context_growth"].measure(dataclasses.replace(result, rows=slower))
    assert found.verdict == "does not grow throughout"


def test_a_command_that_is_no_more_is_not_told() -> None:
    result = dataclasses.replace(cases.throughput(), command="vegas bench throughput m --batches 16")
    assert "```\nvegas bench throughput m --batches 16\n```" in claims.markdown([Source("a.json", result)])
    page = claims.markdown([Source("a.json", dataclasses.replace(result, command="python benchmarks/old.py m"))])
    assert "old.py" not in page
    assert "Measured with a script since replaced by `vegas bench throughput`." in page


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, page = tmp_path / "throughput.json", tmp_path / "claims.md"
    save(cases.throughput(), file)
    assert run(app, ["report", str(file), "--claims"]) == 0
    told = capsys.readouterr().out
    assert (
        "Imaginary-8B, Imaginary accelerator, bfloat16, vllm engine, torch 2.11.0, vllm 0.33.0 (`throughput.json`)"
        in told
    )
    assert "| batch 16 | 16K 1.6" in told
    assert told.count("**Not measured yet.**") == 3  # acceptance twice, kernels
    assert run(app, ["report", str(file), "--claims", "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8").strip() == told.strip()
    assert run(app, ["report", str(file), "--claims", "--json"]) == 0
    found = {claim["title"]: claim["found"] for claim in json.loads(capsys.readouterr().out)}
    assert len(found) == len(CLAIMS)
    assert found["Acceptance against MagicDec-Stream"] == []
    [growth] = found["Growth with the context"]
    assert growth["file"] == "throughput.json"
    assert [finding["verdict"] for finding in growth["findings"]] == ["grows"]
    assert run(app, ["report", str(file), "--claims", "--plots", str(tmp_path / "plots")]) == 2
    assert "--claims draws no plots" in capsys.readouterr().err


@pytest.mark.parametrize("name", CLAIMS)
def test_the_commands_are_ones_that_bench_takes(name: str):
    claim = CLAIMS[name]
    kind, *rest = claim.run.split()
    assert kind == claim.kind
    assert rest[:1] == ([] if kind == "kernels" else ["MODEL"])
    known = {option for command in get_command(app).commands["bench"].commands[kind].params for option in command.opts}
    assert {part for part in rest if part.startswith("--")} <= known
    if "vllm" in rest:
        for variant in variants(rest[rest.index("--policies") + 1].split(",")):
            speculative_config(variant)  # raises if the plugin lacks the policy
