"""Documents: their links lead somewhere, and the files, modules and commands that they name are there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from toy_policy import EveryOther
from typer.main import get_command

from vegas_spec.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(file for folder in (".", "docs", "benchmarks") for file in (ROOT / folder).glob("*.md"))
FILES = [
    f"/{file.relative_to(ROOT)}"
    for folder in ("src", "tests", "docs", "benchmarks")
    for file in (ROOT / folder).rglob("*.*")
]
CODE = re.compile(r"^```.*?^```$", re.S | re.M)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def links(document: Path) -> list[str]:
    """Targets that are not on the network."""
    prose = CODE.sub("", document.read_text(encoding="utf-8"))
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"https?:", target)]


def anchors(document: Path) -> set[str]:
    """What the headings of a document are called in links."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", document.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@every_document
def test_links_lead_somewhere(document: Path):
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_picture_is_shown():
    shown = {Path(link).name for document in DOCUMENTS for link in links(document) if "images/" in link}
    assert shown == {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_the_page_of_a_package_index_stands_alone():
    page = ROOT / "docs" / "package-index.md"
    assert f'readme = "{page.relative_to(ROOT)}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not links(page)


@every_document
def test_files_and_modules_are_there(document: Path):
    spans = re.findall(r"`([^`\n]+)`", CODE.sub("", document.read_text(encoding="utf-8")))
    for name in (name for span in spans for name in re.findall(r"[\w/.]+\.py\b", span)):
        assert "NAME" in name or any(file.endswith(name) for file in FILES), name
    for module in re.findall(r"\bvegas_(?:spec|bench)(?:\.\w+)+", document.read_text(encoding="utf-8")):
        path = Path("src", *module.split("."))
        # The last part may be a name in the module.
        places = [
            ROOT / path,
            ROOT / path.with_suffix(".py"),
            ROOT / path.parent,
            ROOT / path.parent.with_suffix(".py"),
        ]
        assert any(place.exists() for place in places), module


@every_document
def test_commands_take_these_options(document: Path):
    text = document.read_text(encoding="utf-8")
    blocks = "\n".join(CODE.findall(text)).replace("\\\n", " ")
    for line in re.findall(r"^(?:\$ )?(vegas .+)$", blocks, re.M) + re.findall(r"`(vegas [^`]+)`", CODE.sub("", text)):
        command, options = get_command(app), {"--help", "--version"}
        for word in line.partition(" #")[0].split()[1:]:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
                options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            elif word.startswith("--") and command.name != "serve":  # what is not its own goes to vLLM
                assert word in options | {"--help"}, line


def test_the_policy_of_ones_own_is_the_one_that_is_tested():
    assert inspect.getsource(EveryOther).strip() in (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
