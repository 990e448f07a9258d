"""Take a picture of a page of `vegas report` or `vegas inspect`, for the documentation.

    python benchmarks/page_image.py report.html docs/images/report.png --select '#acceptance'
    python benchmarks/page_image.py inspect.html docs/images/inspect.png --dark --height 1400

Needs playwright (extra `dev`) and Chromium; VEGAS_CHROMIUM names one that is not on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--select", help="only this element, as a CSS selector")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1200, help="of the window; a phone has 390")
    parser.add_argument("--height", type=int, default=1200, help="of the window, which is what is taken")
    arguments = parser.parse_args()
    chromium = os.environ.get("VEGAS_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("page_image.py needs Chromium: apt-get install chromium, or set VEGAS_CHROMIUM")
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": arguments.width, "height": arguments.height},
            color_scheme="dark" if arguments.dark else "light",
            device_scale_factor=2 if arguments.width < 600 else 1,
        )
        page.goto(arguments.page.resolve().as_uri())
        page.wait_for_load_state("load")
        page.wait_for_timeout(1000)  # an inspection unpacks its data first
        if arguments.select:  # what stays at the window's top would lie over an element that is taller than the window
            page.add_style_tag(content=".top, .controls { position: static !important; }")
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        target = page.locator(arguments.select).first if arguments.select else page
        target.screenshot(path=arguments.picture)
        browser.close()


if __name__ == "__main__":
    main()
