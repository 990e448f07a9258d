"""Models that need no download: published shapes (``shapes/NAME/config.json``), with random weights."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHAPES = {path.parent.name: path.parent for path in sorted(Path(__file__).with_name("shapes").glob("*/config.json"))}
"""Folders by name; each holds the published model's configuration as Hugging Face reads it."""


def shape_arguments(shape: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for random weights of a shape, over a cache that is filled with noise and not read in."""
    return {
        "model": str(SHAPES[shape]),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "kv_transfer_config": {
            "kv_connector": "DecodeBenchConnector",
            "kv_role": "kv_both",
            # A constant, which it fills in otherwise, would make every score a tie.
            "kv_connector_extra_config": {"fill_mean": 0.0, "fill_std": 1.0},
        },
    }


def vocab_size(shape: str, overrides: Mapping[str, Any]) -> int:
    """Tokens that a shape knows, whose configuration is overridden."""
    config = json.loads((SHAPES[shape] / "config.json").read_text(encoding="utf-8"))
    return int({**config, **overrides}["vocab_size"])


def random_prompts(vocabulary: int, context: int, count: int) -> list[list[int]]:
    """Give prompts of random tokens."""
    numbers = random.Random(context)
    return [numbers.choices(range(vocabulary), k=context) for _ in range(count)]
