"""A tiny model with a tokenizer that spells bytes, in a folder."""

from __future__ import annotations

import pytest
from test_cli_generate import CHAT, save


@pytest.fixture(scope="package")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("models") / "tiny", CHAT)
