"""What the scripts of this folder share: a claim, where its results come from, and how both are told.

A script states a claim and computes what was measured from rows of `vegas bench`; this module finds the files, runs the
benchmark when asked to, and prints. Nothing is compared that was not measured in the same file.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vegas_bench.results.results import Kind, Result, load
from vegas_bench.results.summary import tokens_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAPER = "arXiv 2602.07223"


@dataclass(frozen=True)
class Range:
    """Lowest and highest of a figure that the paper tells."""

    low: float
    high: float

    def verdict(self, value: float) -> str:
        """Where a measured figure lies."""
        if value < self.low:
            return "below the paper's"
        return "above the paper's" if value > self.high else "within the paper's"


@dataclass(frozen=True)
class Finding:
    """One measured figure and what it was measured at."""

    where: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is checked.

    Attributes
    ----------
    name, title, statement : str
        Name of the script; heading; what is claimed.
    paper : str
        The paper's figure, as its summary tells it.
    how : str
        How ours is computed.
    kind : str
        Results that it is computed from.
    measure : callable
        Gives the findings of one result; none if it lacks what the claim is about.
    run : sequence of str
        Arguments of `vegas bench` that measure it, after the model and before ``--out``.

    """

    name: str
    title: str
    statement: str
    paper: str
    how: str
    kind: Kind
    measure: Callable[[Result], Sequence[Finding]]
    run: Sequence[str]

    @property
    def command(self) -> str:
        """Command line that measures it, for any model."""
        return shlex.join(["vegas", "bench", self.kind, *(["MODEL"] if self.takes_model else []), *self.run])

    @property
    def takes_model(self) -> bool:
        """Whether it is measured on a model; kernels are on shapes."""
        return self.kind != "kernels"

    def found(self, files: Sequence[Path]) -> list[tuple[Path, Result, list[Finding]]]:
        """Compute the findings of every file that has some."""
        found = []
        for path in files:
            result = load(path)
            if result.kind == self.kind and (findings := list(self.measure(result))):
                found.append((path, result, findings))
        return found


def stored_results(folder: Path = RESULTS) -> list[Path]:
    """Result files of `vegas bench`, and no other JSON."""
    return [path for path in sorted(folder.glob("*.json")) if '"vegas-result"' in path.read_text(encoding="utf-8")]


def conditions(result: Result) -> str:
    """Model, hardware and versions of a result, in a line."""
    versions = {name: version for name, version in (result.environment.get("versions") or {}).items() if version}
    if result.kind == "kernels":
        what, libraries = ["kernels"], ("torch", "triton", "vllm")
    else:
        engine = result.rows[0].engine if result.kind == "throughput" else "embedded"
        what, libraries = [f"{result.settings.get('engine') or engine} engine"], ("torch", "vllm")
    told = [f"{name} {versions[name]}" for name in libraries if name in versions]
    hardware = str(result.environment.get("hardware", "unknown hardware"))
    return ", ".join([*([result.model] if result.model else []), hardware, *what, *told])


def tell(claim: Claim, files: Sequence[Path]) -> str:
    """Tell claim, paper's figure and ours, in Markdown."""
    lines = [
        f"## {claim.title}",
        "",
        claim.statement,
        "",
        f"- Paper ({PAPER}): {claim.paper}",
        f"- Ours: {claim.how}",
        "",
    ]
    found = claim.found(files)
    if not found:
        lines += ["**Not measured yet.** It is measured by", "", "```", claim.command, "```", ""]
    for path, result, findings in found:
        lines += [f"{conditions(result)} (`{path.name}`):", "", "| measured at | ours | |", "|---|---|---|"]
        lines += [f"| {each.where} | {each.ours} | {each.verdict} |" for each in findings]
        lines += ["", "```", result.command, "```", ""]
    return "\n".join(lines)


def main(claim: Claim) -> None:
    """Command line of a claim's script."""
    parser = argparse.ArgumentParser(
        prog=f"{claim.name}.py",
        description=f"{claim.statement} {PAPER}: {claim.paper}.",
        epilog="Options of `vegas bench` may follow --run after --.",
    )
    parser.add_argument("results", type=Path, nargs="*", help="result files (default: all in benchmarks/results)")
    how = {"metavar": "MODEL"} if claim.takes_model else {"action": "store_true"}
    parser.add_argument("--run", **how, help="measure first, by `vegas bench`; it goes on where it was")
    parser.add_argument("--out", type=Path, help="where --run stores (default: paper_NAME.json in benchmarks/results)")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, more = sys.argv[1:end], sys.argv[end + 1 :]
    arguments = parser.parse_args(own)
    if more and not arguments.run:
        parser.error("options after -- are those of `vegas bench`; they go with --run")
    files = list(arguments.results)
    if arguments.run:
        out = arguments.out or RESULTS / f"paper_{claim.name}.json"
        vegas = Path(sys.executable).with_name("vegas")
        model = [arguments.run] if claim.takes_model else []
        command = [str(vegas), "bench", claim.kind, *model, *claim.run, "--out", str(out), *more]
        code = subprocess.run(command, check=False).returncode
        if code:
            sys.exit(code)
        files.append(out)
    try:
        print(tell(claim, files or stored_results()))
    except ValueError as error:
        parser.exit(2, f"{claim.name}.py: {error}\n")


def at(context: int, batch: int, temperature: float) -> str:
    """Name a shape: context, batch, and temperature where it is not greedy."""
    shape = f"{tokens_text(context)} x {batch}"
    return f"{shape}, temperature {temperature:g}" if temperature else shape
