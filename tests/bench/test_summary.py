"""Summaries of results, against the same figures computed one row at a time."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
import report_cases as cases

from vegas_bench.results import summary
from vegas_bench.results.summary import Point


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
    assert sorted((pair.policy, pair.prompt) for pair in lost) == sorted(expected)
    better = [dataclasses.replace(r, accepted_per_iteration=6.0) if r.policy == "stream" else r for r in rows]
    worst = summary.losses(better, Point(6, 0.05))
    assert {pair.policy for pair in worst} >= {"stream"}
    assert [pair.difference for pair in worst] == sorted(pair.difference for pair in worst)


def test_the_interval_of_a_ratio_is_that_of_pairs():
    theirs = [1.0, 2.0, 3.0, 4.0]
    each = summary.ratio_of_means([1.2 * value for value in theirs], theirs)
    assert (each.mean, each.low, each.high) == pytest.approx((1.2, 1.2, 1.2))
    each = summary.ratio_of_means([2.0, 1.0, 4.0, 3.0], theirs)
    assert each.low < each.mean == 1.0 < each.high
    assert summary.ratio_of_means([1.0], [0.0]).mean == float("inf")


@pytest.mark.parametrize(
    ("label", "rival"), [("quest", True), ("vegas:rows=all", True), ("dense", False), ("oracle:rows=all", False)]
)
def test_rivals(label: str, rival: bool):
    assert summary.is_rival(label) == rival


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
    assert summary.tokens_text(count) == text
