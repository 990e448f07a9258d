"""Flags that are made of dataclasses: each field is one, with its type and default, and all fit a narrow terminal."""

import dataclasses
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
import typer.main

from vegas_spec import LLM
from vegas_spec.cli import add_brought, app, flags
from vegas_spec.cli.errors import UsageError, run
from vegas_spec.config import VegasConfig
from vegas_spec.engine.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Options:
    size: int = 3
    share: float = 0.5
    kind: Literal["this", "that"] = "this"
    most: int | None = None
    names: str | Sequence[str] = field(default_factory=tuple)
    fast: bool = False


OPTIONS = flags.Group(
    of=Options, make=Options, panel="Options of a test", help={"share": "A share."}, switches_off=True
)


def parsed(capsys: pytest.CaptureFixture[str], group: flags.Group, *arguments: str) -> dict[str, Any]:
    app = typer.Typer()

    @app.command()
    @flags.with_groups
    def go(word: str, *, options: Annotated[Options, group], last: int = 1) -> None:
        typer.echo(json.dumps({**vars(options), "word": word, "last": last}))

    assert run(app, ["w", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found.pop("word") == "w"
    return found


def test_every_field_is_a_flag(capsys: pytest.CaptureFixture[str]):
    defaults = {"size": 3, "share": 0.5, "kind": "this", "most": None, "names": [], "fast": False, "last": 1}
    assert parsed(capsys, OPTIONS) == defaults
    asked = ["--size", "4", "--share", "1", "--kind=that", "--most", "9", "--names", "a", "--names", "b", "--fast"]
    given = {"size": 4, "share": 1.0, "kind": "that", "most": 9, "names": ["a", "b"], "fast": True, "last": 5}
    assert parsed(capsys, OPTIONS, *asked, "--last", "5") == given
    assert parsed(capsys, OPTIONS, "--fast", "--no-fast") == defaults


def test_parts_of_a_group_and_other_defaults(capsys: pytest.CaptureFixture[str]):
    part = OPTIONS.without("kind", size=7).saying(most="The most.")
    assert parsed(capsys, part)["size"] == 7
    assert parsed(capsys, part, "--size", "3")["size"] == 3
    assert part.names == ["share", "most", "size", "names", "fast"], "those that have a line of help come first"
    only = OPTIONS.only("most", size=7)
    assert only.names == ["most"]
    assert parsed(capsys, only, "--most", "1")["size"] == 7


def test_no_flag_lacks_its_line_of_help():
    for group in (flags.DRAFTING, flags.SAMPLING, flags.LOADING):
        assert {each.name for each in dataclasses.fields(group.of)} == {*group.help, *group.left_out}


def test_what_is_given_alone_is_handed_on():
    """Where a flag is not given, a file may say something."""
    assert flags.Drafting(kv_budget=0.1).given == {"kv_budget": 0.1}
    assert flags.Drafting(kv_budget=0.1).config == VegasConfig(kv_budget=0.1)
    assert flags.SAMPLING.make(**flags.SAMPLING.defaults) == SamplingParams(temperature=0.0, max_tokens=256)


def test_a_policy_with_options_is_refused_with_the_flags_that_say_it():
    with pytest.raises(UsageError, match=r"--policy vegas --rows all --kv-budget-min 9$"):
        flags.Drafting(policy="vegas:rows=all:kv_budget_min=9")
    assert flags.Drafting(policy="some.module:Policy").given == {"policy": "some.module:Policy"}


def test_options_of_loading_are_those_of_the_api():
    options = inspect.signature(LLM).parameters
    for name, default in vars(flags.Loading()).items():
        assert options[name].default == default


def subcommands(group: Any, words: Sequence[str] = ()) -> list[tuple[list[str], Any]]:
    found: list[tuple[list[str], Any]] = []
    for name, command in group.commands.items():
        inner = subcommands(command, [*words, name]) if hasattr(command, "commands") else []
        found += [([*words, name], command), *inner]
    return found


@pytest.mark.parametrize(
    ("words", "command"), subcommands(typer.main.get_command(app)), ids=lambda each: str(each)[:40]
)
def test_every_flag_can_be_read_at_80_columns(
    words: list[str], command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(app, [*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for parameter in command.params:
        for flag in (*parameter.opts, *parameter.secondary_opts) if parameter.param_type_name == "option" else ():
            assert f"{flag} " in shown or f"{flag}," in shown, flag


# --- subcommands of other packages ----------------------------------------------------------------------------------


def test_a_subcommand_whose_package_lacks_another_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "brought.py").write_text("import no_such_package.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    other = typer.Typer()
    other.command("there")(lambda: None)
    add_brought(other, EntryPoint("brought", "brought:command", "vegas_spec.commands"))
    assert run(other, ["brought", "word", "--flag", "1"]) == 2
    sentence = "vegas: vegas brought needs no_such_package, which is not installed; run: pip install no_such_package\n"
    assert capsys.readouterr().err == sentence
    assert run(other, ["--help"]) == 0
    assert "brought" in capsys.readouterr().out


def test_a_fault_of_such_a_package_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken.py").write_text("import broken.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        add_brought(typer.Typer(), EntryPoint("broken", "broken:command", "vegas_spec.commands"))
