"""Tables and plots of the documentation: each is what the stored results say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from vegas_bench.report.figures import FIGURES, PICTURES, filled, labels, main, picture

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_documentation_says_what_is_stored(document: Path):
    text = document.read_text(encoding="utf-8")
    assert filled(text, RESULTS) == text, "run: python -m vegas_bench.report.figures"
    assert text.count("<!-- figures:") == text.count("<!-- end -->")


def test_every_table_stands_somewhere():
    shown = re.findall(r"<!-- figures: (\S+) -->", "".join(each.read_text(encoding="utf-8") for each in DOCUMENTS))
    assert sorted(shown) == sorted([*FIGURES, "throughput"])  # it is in README and on the page of a package index


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_say_what_is_stored(name: str):
    said = labels((ROOT / "docs" / "images" / name).read_text(encoding="utf-8"))
    assert len(said) > 10
    assert said == labels(picture(name, RESULTS)), "run: python -m vegas_bench.report.figures"


def test_it_writes_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "results").symlink_to(RESULTS)
    (tmp_path / "docs").mkdir()
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- figures: engine-cpu -->\n| 9.99 times as fast |\n<!-- end -->\nafter\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    with pytest.raises(SystemExit, match=r"README\.md is not what the results say"):
        main()
    assert "9.99" in document.read_text()
    monkeypatch.setattr(sys, "argv", ["figures"])
    main()
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "9.99" not in text
    assert "1.13 times as fast (0.92 to 1.25 in 3 pairs)" in text
    assert {path.name for path in (tmp_path / "docs" / "images").iterdir()} == set(PICTURES)
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    main()
