"""How to install more, by where this distribution came from."""

from __future__ import annotations

import importlib.metadata
import json
from types import SimpleNamespace
from typing import Any

import pytest

from vegas_spec.environment import pip_install


@pytest.mark.parametrize(
    ("origin", "extra", "command"),
    [
        (None, "report", "pip install 'vegas-spec[report]'"),
        (None, "", "pip install vegas-spec"),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "report", "pip install -e '/a b[report]'"),
        ({"url": "file:///vegas", "dir_info": {}}, "report", "pip install '/vegas[report]'"),
        ({"url": "file:///vegas", "dir_info": {}}, "", "pip install /vegas"),
        ({"url": "https://host/vegas.whl", "archive_info": {}}, "report", "pip install 'vegas-spec[report]'"),
    ],
)
def test_an_extra_is_installed_from_where_the_rest_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, extra: str, command: str
):
    written = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda name: written if name == "direct_url.json" else "")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert pip_install(extra) == command
