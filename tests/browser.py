"""A real browser for tests of pages: Debian's Chromium, or the one that VEGAS_CHROMIUM names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("VEGAS_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, for example: apt-get install chromium")


@dataclass
class Opened:
    """A page, and what it asked for and complained of."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def check_quiet(self, path: Path) -> None:
        """Nothing but the file was asked for, and nothing went wrong."""
        assert self.requests == [path.as_uri()]
        assert self.complaints == []

    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@contextmanager
def browser() -> Iterator[Any]:
    """One browser for several pages."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as tools:
        running = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(running: Any, path: Path, **options: Any) -> Iterator[Opened]:
    """Open a file in a fresh profile."""
    context = running.new_context(**options)
    try:
        seen = Opened(context.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on(
            "console", lambda line: seen.complaints.append(line.text) if line.type in ("error", "warning") else None
        )
        seen.page.goto(path.as_uri())
        yield seen
    finally:
        context.close()
