"""``vegas models``, and what the command does with bad input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from vegas_spec import __version__
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.cli.load import place_of
from vegas_spec.models import FetchError, Progress, known_models, model_folder

NAMES = [model.name for model in known_models()]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("VEGAS_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def fake_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, progress: Progress) -> Path:
        for step in ("waiting", "downloading", "downloading", "checking", "converting"):
            progress(step, 5, 10)
        return model_folder(name)

    monkeypatch.setattr("vegas_spec.cli.load.fetch", fetch)


def test_the_list_names_every_model(capsys: pytest.CaptureFixture[str]):
    assert run(app, ["models"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert all(name in output.out for name in NAMES)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str], cache: Path):
    folder = cache / "models" / NAMES[0]
    folder.mkdir(parents=True)
    (folder / "fetched.json").write_text(json.dumps({"sha256": known_models()[0].sha256, "files": {}}))
    assert run(app, ["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in models] == NAMES
    assert [model["fetched"] for model in models] == [True] + [False] * (len(NAMES) - 1)
    assert {"description", "licence", "num_bytes", "sha256", "context", "path"} <= models[0].keys()


@pytest.mark.usefixtures("fake_fetch")
def test_fetch_prints_the_folder_on_stdout_and_the_progress_on_stderr(capsys: pytest.CaptureFixture[str], cache: Path):
    assert run(app, ["models", "fetch", NAMES[0]]) == 0
    output = capsys.readouterr()
    assert output.out == f"{cache / 'models' / NAMES[0]}\n"
    assert [line.partition(": ")[2].split()[0] for line in output.err.splitlines()] == [
        "waiting",
        "downloading",
        "checking",
        "converting",
    ]


@pytest.mark.usefixtures("fake_fetch")
def test_fetch_as_json(capsys: pytest.CaptureFixture[str], cache: Path):
    assert run(app, ["models", "fetch", NAMES[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": NAMES[0], "path": str(cache / "models" / NAMES[0])}


# --- models by name, where a model is asked for ---------------------------------------------------------------------


@pytest.mark.usefixtures("fake_fetch")
def test_a_model_is_not_downloaded_unasked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    commands = ["generate", NAMES[0], "--prompt", "x"], ["verify", NAMES[0]], ["demo"]
    for command in commands:
        assert run(app, command) == 2
        sentence = f"{NAMES[0]} is not on this machine yet; fetch it (0.5 GB) with: vegas models fetch {NAMES[0]}"
        assert capsys.readouterr().err == f"vegas: {sentence}\n"
    assert run(app, ["demo", "--yes"]) == 2
    assert "downloading" in capsys.readouterr().out


@pytest.mark.usefixtures("fake_fetch")
@pytest.mark.parametrize(("answer", "fetches"), [("\n", True), ("n\n", False)])
def test_on_a_terminal_it_is_asked(answer: str, fetches: bool, monkeypatch: pytest.MonkeyPatch, cache: Path):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    if fetches:
        assert place_of(NAMES[0], console) == str(cache / "models" / NAMES[0])
    else:
        with pytest.raises(typer.Exit):
            place_of(NAMES[0], console)


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5", "Qwen2.5-Coder-0.5B", "qwen2.5-coder"])
def test_a_name_that_is_almost_known_is_refused_at_once(name: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["generate", name, "--prompt", "x"]) == 2
    assert capsys.readouterr().err.startswith(f"vegas: there is no model {name!r}; did you mean 'qwen2.5-coder-")


def test_a_hub_that_does_not_answer_is_asked_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked = []

    def metadata(url: str, timeout: float) -> None:
        asked.append(url)
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", metadata)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert run(app, ["generate", "some/model", "--prompt", "x"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == len(asked) == 1
    assert "some/model: there is no such file or folder, and the model hub does not answer" in error


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["models", "fetch", "qwen2.5-coder-0.5"], "did you mean 'qwen2.5-coder-0.5b'"),
        (["models", "fetch"], "Missing argument 'NAME'. Try 'vegas models fetch --help'."),
        (["models", "fetch", "a", "b"], "unexpected extra argument"),
        (["models", "fecth", "a"], "No such command 'fecth'"),
        (["models", "--jason"], "No such option"),
        (["modles"], "No such command 'modles'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert run(app, arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vegas: ")
    assert output.err.count("\n") == 1
    assert says in output.err


def command_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def go() -> None:
        raise error

    return app


def test_an_error_of_ours_is_a_sentence(capsys: pytest.CaptureFixture[str]):
    assert run(command_that_raises(FetchError("the disk is full.")), []) == 2
    assert capsys.readouterr().err == "vegas: the disk is full.\n"


def test_an_error_of_another_kind_is_a_fault_and_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(command_that_raises(ZeroDivisionError()), [])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interruption_is_130(error: BaseException, capsys: pytest.CaptureFixture[str]):
    assert run(command_that_raises(error), []) == 130
    assert capsys.readouterr().err.strip() == "vegas: interrupted"


def test_an_exit_code_is_passed_on():
    assert run(command_that_raises(typer.Exit(1)), []) == 1
    assert run(command_that_raises(typer.Exit()), []) == 0


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert run(app, []) == 2
    output = capsys.readouterr()
    assert "models" in output.out
    assert output.err == ""


def test_the_version(capsys: pytest.CaptureFixture[str]):
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out == f"vegas {__version__}\n"


def test_an_error_of_the_workbench_is_a_sentence_too(capsys: pytest.CaptureFixture[str]):
    assert run(app, ["report", "no-such-result.json"]) == 2
    assert capsys.readouterr().err == "vegas: cannot read no-such-result.json: No such file or directory\n"


def test_the_command_starts_without_what_is_heavy():
    heavy = {"torch", "transformers", "huggingface_hub", "numpy", "matplotlib", "jinja2", "datasets", "vllm"}
    code = f"import sys, vegas_spec.cli; print({heavy} & {{each.partition('.')[0] for each in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
