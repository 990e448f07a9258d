"""What ``vegas serve`` makes of its arguments, and what it says where it cannot serve; no server is started here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from vegas_spec import config_file
from vegas_spec.cli import app
from vegas_spec.cli.errors import run
from vegas_spec.environment import pip_install


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed, all arguments go through its parser, whose import takes a quarter of a minute."""
    monkeypatch.setattr("vegas_spec.vllm.start.serve.is_installed", lambda: False)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], dict[str, object]]:
    """The arguments that vLLM would get, and the speculative configuration, which stands last."""
    assert run(app, ["serve", *arguments, "--dry-run"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:2] == ["vllm", "serve"]
    assert words[-2] == "--speculative-config"
    return words[2:-2], json.loads(words[-1])


def test_the_model_is_enough(capsys: pytest.CaptureFixture[str]):
    assert command(capsys, "some/model") == (["some/model", "--max-num-seqs", "256"], {"method": "vegas"})


def test_all_else_goes_to_vllm_in_its_order(capsys: pytest.CaptureFixture[str]):
    passed = ["some/model", "-tp", "2", "--port=80", "--max_num_seqs", "8", "-O3", "--no-enable-prefix-caching"]
    assert command(capsys, *passed, "--kv-budget", "0.1") == (passed, {"method": "vegas", "kv_budget": 0.1})


def test_a_file_of_vllms_decides_how_many_requests_run(capsys: pytest.CaptureFixture[str]):
    passed = ["some/model", "--config", "server.yaml"]
    assert command(capsys, *passed)[0] == passed


@pytest.mark.parametrize(
    "written",
    [
        ["--speculative-config", '{"kv_budget": 0.1, "rows": "all"}'],
        ['--speculative-config={"method": "vegas", "kv-budget": 0.1, "rows": "all"}'],
        ["-sc", '{"rows": "all"}', "-sc.kv-budget", "0.1"],
        ["--speculative_config.kv_budget=0.1", "--speculative-config.rows=all"],
    ],
)
def test_speculative_config_is_merged(capsys: pytest.CaptureFixture[str], written: list[str]):
    rest, config = command(capsys, "some/model", *written, "--port", "80", "--kv-budget", "0.2", "--no-fall-back")
    assert rest == ["some/model", "--port", "80", "--max-num-seqs", "256"]
    assert config == {"method": "vegas", "kv_budget": 0.2, "rows": "all", "fall_back": False}


def test_a_config_file_gives_way_to_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "tuned.toml"
    config_file.save(config_file.ConfigFile({"kv_budget": 0.02, "num_speculative_tokens": 4}, {"model": "m"}), file)
    passed = ["some/model", f"--config={file}", "--config", "server.yaml", "-sc.num-speculative-tokens=3"]
    rest, config = command(capsys, *passed, "--kv-budget", "0.1")
    assert rest == ["some/model", "--config", "server.yaml"]
    assert config == {"method": "vegas", "kv_budget": 0.1, "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kv-budget", "2"], "kv_budget must be a share of the context"),
        (["-sc.kv-bugdet", "2"], "did you mean 'kv_budget'?"),
        (["-sc", '{"method": "eagle"}'], "use vllm serve for another one"),
        (["-sc", "{kv_budget: 1}"], "must be a JSON object"),
        (["--speculative-config"], "must be a JSON object"),
        (["--config", "/no/such.toml"], "cannot read the config file /no/such.toml"),
        (["--config", "a.toml", "--config", "b.toml"], "got a.toml and b.toml"),
        (["--config"], "got no file"),
        (["--kv-budjet", "0.1"], "there is no option --kv-budjet; did you mean --kv-budget?"),
        (["--kv_budget=0.1"], "there is no option --kv_budget; did you mean --kv-budget?"),
        (["--no-fallback"], "did you mean --no-fall-back?"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str):
    assert run(app, ["serve", "some/model", "--dry-run", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_was_not_checked_is_said(capsys: pytest.CaptureFixture[str]):
    assert run(app, ["serve", "some/model", "--no-such-option", "--dry-run"]) == 0
    assert (
        capsys.readouterr().err
        == "vegas: the options of vllm serve were not checked, since vLLM is not installed here\n"
    )


@pytest.mark.parametrize(
    ("installed", "environment", "says"),
    [
        (False, {}, f"vLLM, which is not installed; run: {pip_install('vllm')}"),
        (True, {"VEGAS_DISABLE": "1"}, "unset VEGAS_DISABLE"),
        (True, {"VLLM_PLUGINS": "other"}, "got 'other'. Add vegas to it"),
    ],
)
def test_where_it_cannot_serve(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    environment: dict[str, str],
    says: str,
):
    monkeypatch.setattr("vegas_spec.vllm.start.serve.is_installed", lambda: installed)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(app, ["serve", "some/model"]) == 2
    assert says in capsys.readouterr().err
