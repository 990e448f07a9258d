"""Summaries of results, against the same figures computed one row at a time."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

import pytest
import report_cases as cases

from vegas_bench.results import summary
from vegas_bench.results.intervals import ratio_of_means
from vegas_bench.results.summary import Point
from vegas_bench.results.wording import count_text, tokens_text
from vegas_spec.config import policy_paths


def test_policies_are_compared_where_most_were_measured():
    rows = cases.acceptance(prompts=2).rows
    assert summary.points(rows)[0] == Point(6, 0.05)
    assert set(summary.points(rows)) == {Point(6, b) for b in (0.03, 0.05, 0.07, 0.1)} | {
        Point(4, 0.05),
        Point(8, 0.05),
    }
    assert set(summary.by_policy(rows, Point(6, 0.05))) == set(cases.LEVELS)
    assert set(summary.by_policy(rows, Point(6, 0.03))) == {"vegas", "quest", "stream", "dense"}
    assert set(summary.by_policy(rows, Point(4, 0.05))) == {"vegas", "quest", "stream"}


def test_prompts_without_drafts_do_not_count():
    rows = cases.acceptance(prompts=2, sweep=False).rows
    rows[0] = dataclasses.replace(rows[0], drafts=0)
    assert len(summary.by_policy(rows, Point(6, 0.05))["vegas"]) == 1


def test_position_rates():
    row = cases.acceptance(prompts=1, sweep=False).rows[0]
    first = dataclasses.replace(row, accepted_per_position=[3, 1], proposed_per_position=[4, 4])
    last = dataclasses.replace(row, accepted_per_position=[1, 1], proposed_per_position=[1, 1])
    none = dataclasses.replace(row, accepted_per_position=[0, 0, 0], proposed_per_position=[1, 0, 0])
    assert summary.position_rates([first, last]) == [4 / 5, 2 / 5]
    assert summary.position_rates([none]) == [0.0]
    assert summary.position_rates([]) == []


def test_pairs_and_losses():
    rows = cases.acceptance(prompts=4, sweep=False).rows
    own = {row.prompt: row.accepted_per_iteration for row in rows if row.policy == "vegas"}
    found = summary.pairs(rows, Point(6, 0.05))
    assert set(found) == set(cases.LEVELS) - {"vegas"}
    for policy, pairs in found.items():
        others = [row for row in rows if row.policy == policy]
        assert [pair.difference for pair in pairs] == [own[r.prompt] - r.accepted_per_iteration for r in others]
    lost = summary.losses(rows, Point(6, 0.05))
    expected = [
        (row.policy, row.prompt)
        for row in rows
        if row.policy in ("quest", "stream", "specextend") and row.accepted_per_iteration > own[row.prompt]
    ]
    assert sorted((pair.other.policy, pair.other.prompt) for pair in lost) == sorted(expected)
    better = [dataclasses.replace(r, accepted_per_iteration=6.0) if r.policy == "stream" else r for r in rows]
    worst = summary.losses(better, Point(6, 0.05))
    assert {pair.other.policy for pair in worst} >= {"stream"}
    assert [pair.difference for pair in worst] == sorted(pair.difference for pair in worst)


def test_the_interval_of_a_ratio_is_that_of_pairs():
    theirs = [1.0, 2.0, 3.0, 4.0]
    each = ratio_of_means([1.2 * value for value in theirs], theirs)
    assert (each.mean, each.low, each.high) == pytest.approx((1.2, 1.2, 1.2))
    each = ratio_of_means([2.0, 1.0, 4.0, 3.0], theirs)
    assert each.low < each.mean == 1.0 < each.high
    assert ratio_of_means([1.0], [0.0]).mean == float("inf")


@pytest.mark.parametrize(
    ("label", "rival", "selects"),
    [
        ("quest", True, True),
        ("vegas:rows=all", True, True),
        ("vegas (6 drafts, budget 5\u00a0%)", True, True),
        ("dense", False, False),
        ("full", False, False),
        ("oracle:rows=all", False, True),
        ("ngram", True, True),  # another way to draft, of vLLM
        ("somebodys", True, True),  # a policy of a package that is not installed
        ("os:system", True, True),  # what a file names is not imported
    ],
)
def test_rivals(label: str, rival: bool, selects: bool):
    assert summary.is_rival(label) == rival
    assert summary.selects(label) == selects


def test_policies_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its traits are asked for; one that cannot be imported is another way to draft."""
    about = tmp_path / "elsewhere-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: elsewhere\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[vegas_spec.policies]\nnothing-left-out = elsewhere:Everything\nnot-there = elsewhere:Nothing\n"
    )
    (tmp_path / "elsewhere.py").write_text(
        "from vegas_spec.policies.dense import DensePolicy\n\nclass Everything(DensePolicy):\n    name = 'all'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    policy_paths.cache_clear()
    try:
        assert not summary.is_rival("nothing-left-out:rows=all")
        assert not summary.selects("nothing-left-out")
        assert summary.is_rival("not-there")
        assert summary.selects("not-there")
    finally:
        policy_paths.cache_clear()


def test_a_summary_is_that_of_its_rows():
    rows = cases.acceptance(prompts=3).rows
    rows[0] = dataclasses.replace(rows[0], drafts=0)
    found = summary.summarise(rows)
    assert len(found) == len({(row.policy, summary.point_of(row)) for row in rows})
    for each in found:
        own = [row for row in rows if (row.policy, summary.point_of(row).budget) == (each.policy, each.kv_budget)]
        own = [row for row in own if summary.point_of(row).gamma == each.num_speculative_tokens and row.drafts]
        accepted = [row.accepted_per_iteration for row in own]
        assert each.prompts == len(own)
        assert each.accepted.mean == pytest.approx(statistics.fmean(accepted))
        assert (each.lowest, each.highest) == (min(accepted), max(accepted))
        assert each.by_position == summary.position_rates(own)
        assert each.draft_kv_share == pytest.approx(statistics.fmean(row.draft_kv_share for row in own))
        assert each.correct is None


def test_few_prompts_are_told():
    assert summary.few_prompts([16, 4]) == "Intervals are over 4 prompts: so few cover the mean less often than 95 %."
    assert "over 1 prompt:" in summary.few_prompts([1])
    assert summary.few_prompts([10, 16]) == summary.few_prompts([]) == ""


def test_speedups():
    rows = cases.throughput().rows
    for shape, sides in summary.by_shape(rows).items():
        base = statistics.median(sides["full"].tokens_per_second)
        ratios = summary.speedups(sides)
        assert set(ratios) == set(sides) - {"full"}
        for label, each in ratios.items():
            speeds = sides[label].tokens_per_second
            assert each.ratio == statistics.median(speeds) / base
            assert (each.low, each.high) == (min(speeds) / base, max(speeds) / base)
            assert sides[label].context == shape.context
        del sides["full"]
        assert summary.speedups(sides) == {}


def test_a_label_that_comes_twice_is_told_apart():
    [row, *_] = [row for row in cases.throughput().rows if row.policy == "vegas"]
    tuned = dataclasses.replace(row, config=cases.config("vegas", 8, 0.07))
    [sides] = summary.by_shape([row, tuned, tuned]).values()
    assert list(sides) == [
        "vegas (6 drafts, budget 5\u00a0%)", "vegas (8 drafts, budget 7\u00a0%)", "vegas (8 drafts, budget 7\u00a0%, 2)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512, "512"),
        (1024, "1K"),
        (1536, "1.5K"),
        (16_384, "16K"),
        (122_880, "120K"),
        (28_000, "28K"),
        (12_307, "12K"),
    ],
)
def test_numbers_of_tokens(count: int, text: str):
    assert tokens_text(count) == text


def test_how_many():
    assert [count_text(count, "request") for count in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]
