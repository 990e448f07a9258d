"""A tiny model with a tokenizer that spells bytes, in a folder; a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser import browser
from test_cli_generate import CHAT, save


@pytest.fixture(scope="package")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("models") / "tiny", CHAT)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running
