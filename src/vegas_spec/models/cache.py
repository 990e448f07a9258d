"""Where fetched models are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Vegas's folder for what can be fetched again: ``$VEGAS_CACHE`` if it is set, else the user's cache folder."""
    chosen = os.environ.get("VEGAS_CACHE")
    return (
        Path(chosen).expanduser().absolute()
        if chosen
        else Path(platformdirs.user_cache_dir("vegas-spec", appauthor=False))
    )
