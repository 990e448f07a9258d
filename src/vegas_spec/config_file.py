"""Options of `VegasConfig` in a file, with what they were measured on: written by ``vegas tune``, read everywhere."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from vegas_spec.config import ConfigError, VegasConfig

_HEADER = "# Options of Vegas: for `vegas generate --config`, `vegas serve --config` and vegas_spec.config_file.load.\n"


@dataclass(frozen=True)
class ConfigFile:
    """A config file's content.

    Attributes
    ----------
    options : dict
        Options of `VegasConfig` by name; those that are absent keep their defaults.
    tuned_on : dict
        What they were measured on: ``model``, ``hardware``, ``engine``, ``workload``, ``context``, ``batch``, ``date``,
        ``command``, ``versions``; empty for a file written by hand.

    """

    options: dict[str, Any]
    tuned_on: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> VegasConfig:
        """The options as a config."""
        return VegasConfig.from_dict(self.options)

    def warnings(self, *, model: str, hardware: str) -> list[str]:
        """Say in a sentence each how a use differs from what the options were measured on.

        Parameters
        ----------
        model : str
            Name, hub id or path; the last part is compared.
        hardware : str
            As `vegas_spec.environment.hardware` names it.

        """
        sentences = []
        for what, used in (("model", model), ("hardware", hardware)):
            # A file written by hand may say anything here.
            tuned = None if self.tuned_on.get(what) is None else str(self.tuned_on[what])
            same = tuned is None or (_last_part(tuned) == _last_part(used) if what == "model" else tuned == used)
            if not same:
                sentences.append(f"these options were tuned on {what} {tuned!r}, and this is {used!r}; tune again")
        return sentences


def load(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a config file: TOML, or JSON if its name ends in ``.json``, with tables ``vegas`` and ``tuned_on``.

    Raises
    ------
    ConfigError
        If it cannot be read, has other tables, or an option is unknown or not allowed.

    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8-sig")
        data = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of either syntax, or not UTF-8
        kind = "JSON" if file.suffix == ".json" else "TOML"
        raise ConfigError(f"the config file {path} is not {kind}: {error}") from error
    tables = data if isinstance(data, dict) else {}
    if not isinstance(tables.get("vegas"), dict) or not isinstance(tables.setdefault("tuned_on", {}), dict):
        raise ConfigError(f"the config file {path} must have a table [vegas] of options; `vegas tune` writes one")
    if other := sorted(set(tables) - {"vegas", "tuned_on"}):
        raise ConfigError(f"the config file {path} has an unknown table {other[0]!r}; known: vegas, tuned_on")
    try:
        VegasConfig.from_dict(tables["vegas"])
    except ConfigError as error:
        raise ConfigError(f"the config file {path}: {error}") from None
    return ConfigFile(tables["vegas"], tables["tuned_on"])


def save(content: ConfigFile, path: str | os.PathLike[str]) -> None:
    """Write a config file, in TOML, or in JSON if its name ends in ``.json``.

    Raises
    ------
    ConfigError
        If it cannot be written.

    """
    file = Path(path).expanduser()
    tables = {"vegas": content.options, "tuned_on": content.tuned_on}
    if file.suffix == ".json":
        text = json.dumps(tables, indent=1) + "\n"
    else:
        text = f"{_HEADER}\n{tomli_w.dumps(_without_none(tables))}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Of a command line, bytes that are no text are surrogates, which cannot be encoded.
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot write the config file {path}: {error.strerror}") from error


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave None out, which TOML lacks: its meaning is the default."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def _last_part(name: str) -> str:
    return Path(name).name.lower()
