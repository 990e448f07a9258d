"""Write this folder's README.md from the stored results, or check that it is what they say.

python benchmarks/paper/make_readme.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from _claims import PAPER, RESULTS, stored_results, tell

SCRIPTS = (
    "acceptance_vs_stream",
    "throughput_vs_best",
    "selection_overhead",
    "selection_in_kernels",
    "collect_two_queries",
    "context_growth",
)
README = Path(__file__).with_name("README.md")

HEAD = f"""# Claims of the paper, and what we measured

The claims are those of the method's summary ({PAPER}); its models and hardware are not ours, so its figures say what to
expect, not what must come out. Each script of this folder states one claim and computes our figures for it from stored
results of `vegas bench` (`benchmarks/results/`); `--run` measures first. This page is written by `make_readme.py`
and holds no figure that is not in such a file.
"""


def readme(files: Sequence[Path]) -> str:
    """Give the page for these result files."""
    parts = [tell(importlib.import_module(name).CLAIM, files) for name in SCRIPTS]
    return "\n".join([HEAD, *parts]).rstrip("\n") + "\n"


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only tell whether the page is up to date")
    arguments = parser.parse_args()
    text = readme(stored_results(RESULTS))
    if arguments.check:
        if README.read_text(encoding="utf-8") != text:
            sys.exit(
                "benchmarks/paper/README.md is not what the results say; run: python benchmarks/paper/make_readme.py"
            )
    else:
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
