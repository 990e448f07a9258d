"""How to install more, by where this distribution came from."""

from __future__ import annotations

import importlib.metadata
import json
from types import SimpleNamespace
from typing import Any

import pytest

from vegas_spec.environment import pip_install


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'vegas-spec[report]'"),
        ({"url": "file:///home/me/a%20b", "dir_info": {"editable": True}}, "pip install -e '/home/me/a b[report]'"),
        ({"url": "file:///home/me/vegas", "dir_info": {}}, "pip install '/home/me/vegas[report]'"),
        ({"url": "https://host/vegas.whl", "archive_info": {}}, "pip install 'vegas-spec[report]'"),
    ],
)
def test_an_extra_is_installed_from_where_the_rest_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
):
    written = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda name: written if name == "direct_url.json" else "")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert pip_install("report") == command
    assert pip_install() == command.replace("[report]", "").replace("'vegas-spec'", "vegas-spec").replace(
        "'/home/me/vegas'", "/home/me/vegas"
    )
