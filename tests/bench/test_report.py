"""``vegas report``: the page, its plots, what it leaves out, and bad input."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import report_cases as cases
from browser import DESKTOP, PHONE, browser, needs_browser, opened

from vegas_bench.report import palette
from vegas_bench.report.acceptance import acceptance_block
from vegas_bench.report.loading import Source
from vegas_bench.report.page import make_report
from vegas_bench.report.svg import RC
from vegas_bench.results.results import Result, save
from vegas_spec.cli import app
from vegas_spec.cli.errors import run

OPS = Path(__file__).parents[2] / "benchmarks" / "results" / "ops.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of every kind."""
    path = tmp_path_factory.mktemp("results")
    for name, make in cases.ALL.items():
        save(make(), path / f"{name}.json")
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    """The page of all of them, with its plots."""
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    path = folder / "out" / "report.html"
    assert run(app, ["report", *files, "-o", str(path), "--plots", str(folder / "plots")]) == 0
    return path


def html_of(*results: Result) -> str:
    return make_report([Source(f"{result.kind}.json", result) for result in results]).html


def figures(html: str) -> list[str]:
    return re.findall(r'<figure id="plot-([^"]+)">', html)


def test_sections_are_those_with_data(page: Path):
    html = page.read_text(encoding="utf-8")
    order = ["throughput", "acceptance", "tuning", "kernels", "raw", "environment", "commands"]
    assert re.findall(r'<section id="(\w+)">', html) == order
    only = html_of(cases.tuning())
    assert re.findall(r'<section id="(\w+)">', only) == ["tuning", "raw", "environment", "commands"]


def test_every_plot_is_on_the_page_and_beside_it(page: Path, folder: Path):
    names = figures(page.read_text(encoding="utf-8"))
    assert {
        "throughput-speedup", "throughput-growth-16", "throughput-phases", "throughput-overhead",
        "acceptance-acceptance", "acceptance-positions", "acceptance-kinds", "acceptance-contexts",
        "acceptance-pareto", "acceptance-recall", "acceptance-overlap",
        "tuning-step-1", "tuning-step-2", "tuning-step-3", "kernels-verify", "kernels-sparse-5",
    } == set(names)  # fmt: skip
    for name in names:
        assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ET.parse(folder / "plots" / f"{name}.svg")
    assert len(list((folder / "plots").iterdir())) == 2 * len(names)


def test_what_was_not_measured_is_not_drawn():
    bare = cases.without(cases.throughput(), "predicted_speedup", "milliseconds", "selection_overhead")
    assert figures(html_of(bare)) == ["throughput-speedup", "throughput-growth-16"]
    assert ">predicted</text>" not in html_of(bare)
    assert '<th class="n">tokens/s</th>' in html_of(bare)
    assert "selecting (%)" not in html_of(bare)
    few = cases.without(cases.acceptance(sweep=False), "recall", "overlap_by_distance")
    assert "acceptance-pareto" not in figures(html_of(few))
    assert not {"acceptance-recall", "acceptance-overlap"} & set(figures(html_of(few)))


@pytest.mark.filterwarnings("error")
def test_long_labels_leave_room_for_the_plot():
    with matplotlib.rc_context(RC):
        block = acceptance_block(cases.ablations(), "a", "", "")
        for plot in block.plots:
            plot.figure.draw_without_rendering()
            [axes] = plot.figure.axes
            assert axes.get_position().width > 0.45, plot.name
            assert axes.get_position().height > 0.4, plot.name
            legend = axes.get_legend()
            if legend is not None:
                assert legend.get_window_extent().x1 <= plot.figure.bbox.x1, plot.name
    assert "a-positions" not in [plot.name for plot in block.plots]


def test_without_the_baseline_no_speedup_is_told():
    result = cases.throughput()
    rows = [row for row in result.rows if row.policy != "full"]
    html = html_of(dataclasses.replace(result, rows=rows))
    assert figures(html) == ["throughput-phases", "throughput-overhead"]
    assert "No speedup can be told at 16K x 16" in html


def test_figures_on_the_page_are_drawn_in_its_colours(page: Path):
    html = page.read_text(encoding="utf-8")
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.S))
    assert not re.findall(r"(?:fill|stroke): ?#(?!000000)[0-9a-f]{6}", drawings)
    assert "var(--blue)" in drawings
    assert len(re.findall(r'id="', html)) == len(set(re.findall(r'id="([^"]+)"', html)))


def test_colours_stand_out_from_their_background():
    """WCAG 2 asks for a contrast of 3 of graphics and 4.5 of text."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for colour in palette.COLOURS:
        if colour not in (palette.PAPER, palette.GRID):
            wanted = 4.5 if colour in (palette.INK, palette.MUTED) else 2.85
            assert contrast(colour.light, palette.PAPER.light) >= wanted, colour.name
            assert contrast(colour.dark, palette.PAPER.dark) >= wanted, colour.name
    assert len({colour.light for colour in palette.COLOURS}) == len(palette.COLOURS)


def test_the_honest_list(page: Path):
    html = page.read_text(encoding="utf-8")
    [sentence] = re.findall(r"<p>(Prompts on which another policy .*?)</p>", html)
    assert re.search(r"quest on \d+ of 20", sentence)
    assert "dense" not in sentence
    assert "oracle" not in sentence
    assert "Prompts on which vegas lost" in html


def test_text_of_a_result_is_text(folder: Path, tmp_path: Path):
    hostile = dataclasses.replace(cases.tuning(), model="<script>alert(1)</script>", command="a && b <c>")
    html = html_of(hostile)
    assert "<script>alert" not in html
    assert "a &amp;&amp; b &lt;c&gt;" in html
    # Dollar signs begin no formula, and a file name in a command may hold bytes that are no text.
    result = cases.acceptance(4, sweep=False)
    rows = [dataclasses.replace(row, kind=f"{row.kind} $\\frac$", policy=f"{row.policy}:$x$") for row in result.rows]
    save(dataclasses.replace(result, rows=rows, command="bench \udcff.jsonl"), tmp_path / "odd.json")
    assert run(app, ["report", str(tmp_path / "odd.json"), "-o", str(tmp_path / "odd.html")]) == 0
    html = (tmp_path / "odd.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<text [^>]*>vegas:\$x\$</text>", html)) > 2
    assert "bench ?.jsonl" in html


def test_the_stored_kernels_are_a_result(tmp_path: Path):
    target = tmp_path / "report.html"
    assert run(app, ["report", str(OPS), "-o", str(target)]) == 0
    html = target.read_text(encoding="utf-8")
    assert figures(html) == ["kernels-verify", "kernels-sparse-5", "kernels-sparse-7"]
    assert "Qwen3-8B 16 x 32K" in html


def test_other_json_is_named_and_left_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other.json"
    other.write_text('{"hardware": "x"}')
    files = [str(folder / "tuning.json"), str(other), str(folder / "tuning.json")]
    assert run(app, ["report", *files, "-o", str(tmp_path / "r.html"), "--json"]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert summary["left_out"] == [str(other)]
    assert summary["sections"] == ["tuning", "raw", "environment", "commands"]
    assert "other.json is no result" in output.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[1]", "no result of `vegas bench`"),
        ('{"schema": "vegas-result", "version": 99}', "has version 99"),
        ('{"schema": "vegas-result", "version": 1, "kind": "speed"}', "has kind 'speed'"),
    ],
)
def test_bad_input(content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "result.json"
    if content is not None:
        file.write_text(content)
    assert run(app, ["report", str(file), "-o", str(tmp_path / "r.html")]) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert output.err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_places_that_cannot_be_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result = str(folder / "tuning.json")
    assert run(app, ["report", result, "-o", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert run(app, ["report", result, "-o", str(tmp_path / "r.html"), "--plots", result]) == 2
    assert "--plots must be a folder" in capsys.readouterr().err
    before = Path(result).read_bytes()
    assert run(app, ["report", result, "-o", result]) == 2
    assert "--output must be another file than the results" in capsys.readouterr().err
    assert Path(result).read_bytes() == before


def test_a_report_is_the_same_twice():
    assert html_of(cases.kernels()) == html_of(cases.kernels())


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@needs_browser
@pytest.mark.browser
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(chromium: Any, page: Path, size: dict[str, Any], scheme: str):
    with opened(chromium, page, color_scheme=scheme, **size) as seen:
        assert seen.overflow() == 0
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
        seen.page.click("#theme")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != background
        # The choice is kept. The browser writes it down a moment later, and a reload may come before that.
        for _ in range(20):
            seen.page.wait_for_timeout(100)
            seen.page.reload()
            kept = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
            if kept != background:
                break
        assert kept != background
        for svg in seen.page.query_selector_all("svg.plot"):
            box = svg.bounding_box()
            assert box["width"] > 250
            assert box["height"] > 60
        assert seen.complaints == []
        assert set(seen.requests) == {page.as_uri()}


@needs_browser
@pytest.mark.browser
def test_sorting_in_a_browser(chromium: Any, page: Path):
    with opened(chromium, page, **DESKTOP) as seen:

        def column(place: int) -> list[str]:
            cells = seen.page.query_selector_all(f"#acceptance table >> nth=0 >> tbody td:nth-child({place})")
            return [cell.inner_text() for cell in cells]

        headings = seen.page.query_selector_all("#acceptance table >> nth=0 >> th")
        means = [float(text) for text in column(2)]
        assert means == sorted(means, reverse=True)
        headings[1].click()
        assert [float(text) for text in column(2)] == sorted(means)
        headings[1].click()
        assert [float(text) for text in column(2)] == sorted(means, reverse=True)
        headings[0].press("Enter")
        assert column(1) == sorted(column(1))
        seen.check_quiet(page)
