"""``vegas report``: the page, its plots, what it leaves out, and bad input."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import report_cases as cases
from browser import DESKTOP, PHONE, needs_browser, opened

from vegas_bench.report import palette
from vegas_bench.report.acceptance import acceptance_block
from vegas_bench.report.loading import Source, load_sources
from vegas_bench.report.page import make_report
from vegas_bench.report.svg import RC
from vegas_bench.results.results import Result, load, save
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.config import policy_paths

STORED = Path(__file__).parents[2] / "benchmarks" / "results"
FIGURES = {
    "acceptance_0.5b_cpu.json": [
        "4.25 of 6", "5.1 %", "3.82 to 4.64", "quest on 6 of 20", "specextend on 8 of 20", "+2.28 (+1.80 to +2.79)",
    ],
    "acceptance_1.5b_cpu.json": ["5.01 of 6", "4.73 to 5.30", "2.43 to 3.85", "quest on 1 of 4"],
    "acceptance_h200.json": ["4.84 of 6", "vegas:rows=all on 6 of 16"],
    "acceptance_lookahead_1.5b_h200.json": ["5.03 of 6"],
    "acceptance_sweeps_0.5b_cpu.json": ["4.23 of 6", 'id="plot-acceptance-pareto"'],
    "acceptance_yarn_1.5b_cpu.json": ["5.30 of 6", "5.0 %", "2.44 to 2.44"],
    "ops.json": ["Qwen3-8B 16 x 32K", ">426496<", ">98</text>", ">62</text>", 'id="plot-kernels-sparse-7"'],
    "throughput_1.5b.json": ["2.09\u00d7", "0.75\u00d7", ">8723.4<", ">3.447<"],
    "vllm_decode_1.5b.json": ["2.01\u00d7", "0.61\u00d7", ">8616.0<", "8602.8 to 8629.3", ">3.431<", ">24.3</text>"],
    "vllm_decode_8b.json": ["2.05\u00d7", "1.21\u00d7", ">1459.3<", ">2.547<", ">4.69<", ">61.8</text>"],
}  # fmt: skip
"""Of each stored result, some figures on its page."""


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
    assert ">memory-bound</text>" not in html_of(bare)
    assert ">memory-bound</text>" in html_of(cases.throughput())
    assert '<th class="n">tokens/s</th>' in html_of(bare)
    assert "selecting (%)" not in html_of(bare)
    few = cases.without(cases.acceptance(sweep=False), "recall", "overlap_by_distance")
    assert "acceptance-pareto" not in figures(html_of(few))
    assert not {"acceptance-recall", "acceptance-overlap"} & set(figures(html_of(few)))


@pytest.mark.filterwarnings("error")
def test_long_labels_leave_room_for_the_plot():
    with matplotlib.rc_context(RC):
        block = acceptance_block(cases.ablations(), "a")
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


def test_every_stored_result_is_pinned_below():
    stored = {path.name for path in STORED.glob("*.json") if '"vegas-result"' in path.read_text(encoding="utf-8")}
    assert stored == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_stored_result_says_what_it_said(name: str):
    html = make_report([Source(name, load(STORED / name))]).html
    assert [figure for figure in FIGURES[name] if figure not in html] == []


def test_the_stored_kernels_have_their_plots():
    html = make_report([Source("ops.json", load(STORED / "ops.json"))]).html
    assert figures(html) == ["kernels-verify", "kernels-sparse-5", "kernels-sparse-7"]


def tiles(html: str) -> list[str]:
    return [re.sub(r"<[^>]+>", "|", each) for each in re.findall(r"<div><dd class=\"value\">.*?</div>", html)]


def test_tiles_and_headings_of_several_files_are_told_apart():
    """Also where two files have one name, in two folders."""
    sources = [Source(name, load(STORED / name)) for name in FIGURES]
    html = make_report(sources).html
    assert len(tiles(html)) == len(set(tiles(html))) == 14
    headings = re.findall(r"<h3>(.*?)</h3>", html)
    assert len(headings) == len(set(headings)) + len(FIGURES)  # of environment, and of commands
    alone = make_report(sources[:1]).html
    assert "acceptance_0.5b_cpu.json" not in "".join(tiles(alone))


def test_files_of_one_name_are_told_apart(folder: Path, tmp_path: Path):
    other = tmp_path / "acceptance.json"
    save(cases.acceptance(4, sweep=False), other)
    sources, _ = load_sources([folder / "acceptance.json", other, folder / "tuning.json"])
    assert [source.name for source in sources] == [str(folder / "acceptance.json"), str(other), "tuning.json"]
    assert len(set(tiles(make_report(sources).html))) == 5


def test_imposed_acceptance_is_said_wherever_a_speed_is():
    html = make_report([Source("8b.json", load(STORED / "vllm_decode_8b.json"))]).html
    [tile] = tiles(html)
    assert "2.05\u00d7" in tile
    assert "qwen3-8b shapes, acceptance imposed, NVIDIA H200, 16 requests of 32K" in tile
    assert "<h3>qwen3-8b shapes, acceptance imposed</h3>" in html
    assert "acceptance imposed (that drafts 1, 2, ... are all accepted: 0.93, 0.86, 0.80, 0.74, 0.68, 0.62)" in html
    for rates in ([0.9, 0.8], "0.9,0.8"):
        imposed = dataclasses.replace(cases.throughput(), settings={"imposed_acceptance": rates})
        assert "are all accepted: 0.9, 0.8)" in html_of(imposed)
    assert "imposed" not in html_of(cases.throughput())
    random = dataclasses.replace(cases.throughput(), settings={"shape": "imaginary-8b", "imposed_acceptance": None})
    assert "<h3>Imaginary-8B shapes, random weights</h3>" in html_of(random)


def test_two_runs_in_one_file_are_not_called_one():
    html = make_report([Source("1.5b.json", load(STORED / "vllm_decode_1.5b.json"))]).html
    assert "one run" not in html
    assert "same run" not in html
    assert "Two commands on one machine, four minutes apart." in html
    commands = re.findall(r"<code>(python benchmarks/vllm_decode.py .*?)</code>", html)
    assert len(commands) == 2
    assert "--sides stock vegas ngram" in commands[0]
    assert "--sides vegas " in commands[1]


def test_what_a_run_did_otherwise_is_said():
    noted = dataclasses.replace(cases.tuning(), settings={"notes": ["two budgets were the same", "a prompt was cut"]})
    assert "<p>two budgets were the same</p><p>a prompt was cut</p>" in html_of(noted)


def test_a_prediction_has_one_meaning():
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html_of(cases.throughput()))
    told = [caption for caption in captions if "hollow" in caption or "diamond" in caption]
    assert len(told) == 2
    for caption in told:
        assert "what reading weights and cache alone would allow, with the drafts that were accepted" in caption


def test_one_is_singular():
    one = cases.acceptance(1, sweep=False)
    about = {**one.environment, "hardware": "Imaginary processor, 1 threads"}  # as older files have it
    html = html_of(dataclasses.replace(one, environment=about))
    assert "Imaginary processor, 1 thread, 1 prompt" in tiles(html)[0].replace("||", ", ")
    alone = [dataclasses.replace(row, batch=1) for row in cases.throughput().rows if row.context == 131_072]
    html += html_of(dataclasses.replace(cases.throughput(), rows=alone))
    assert "1 request of 128K" in html
    assert not re.findall(r"\b1 (?:threads|requests|prompts|drafts)\b", html)


def test_few_prompts_are_said_to_be_few():
    assert "Intervals are over 4 prompts" in html_of(cases.acceptance(4, sweep=False))
    assert "Intervals are over" not in html_of(cases.acceptance(12, sweep=False))


def test_a_policy_from_elsewhere_has_its_own_colour_and_mark():
    known = list(policy_paths())
    labels = [*known, "toy", "ngram", "other.package:Policy", *(f"vegas:kv_budget_min={least}" for least in range(20))]
    styles = palette.policy_styles(labels)
    assert set(styles) == set(labels)
    assert len(set(styles.values())) == len(labels)
    assert {name: styles[name] for name in known} == palette.policy_styles(known)
    rows = [
        dataclasses.replace(row, policy={"quest": "toy", "stream": "ngram"}.get(row.policy, row.policy))
        for result in (cases.acceptance(12), cases.throughput())
        for row in result.rows
    ]
    accepted = [row for row in rows if hasattr(row, "prompt")]
    speeds = [row for row in rows if not hasattr(row, "prompt")]
    html = html_of(
        dataclasses.replace(cases.acceptance(), rows=accepted), dataclasses.replace(cases.throughput(), rows=speeds)
    )
    assert re.search(r"toy on \d+ of 12", html)
    assert len(re.findall(r">ngram</text>", html)) > 3


def test_other_json_is_named_and_left_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other.json"
    other.write_text('{"hardware": "x"}')
    soak = tmp_path / "soak.json"
    soak.write_text('{"schema": "vegas-soak", "version": 1}')
    files = [str(folder / "tuning.json"), str(other), str(folder / "tuning.json"), str(soak)]
    assert run(app, ["report", *files, "-o", str(tmp_path / "r.html"), "--json"]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert summary["left_out"] == [str(other), str(soak)]
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
def test_all_stored_results_fit_a_phone(chromium: Any, tmp_path: Path):
    path = tmp_path / "stored.html"
    path.write_text(make_report([Source(name, load(STORED / name)) for name in FIGURES]).html, encoding="utf-8")
    with opened(chromium, path, **PHONE) as seen:
        assert seen.overflow() == 0
        seen.check_quiet(path)


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
