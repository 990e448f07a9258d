"""A claim of the paper: what is claimed, what was measured, and how both are told.

Nothing is compared that was not measured in the same file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vegas_bench.report.loading import Source
from vegas_bench.results.results import Kind, Result

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
    title, statement : str
        Heading; what is claimed.
    paper : str
        The paper's figure, as its summary tells it.
    how : str
        How ours is computed.
    kind : str
        Results that it is computed from.
    measure : callable
        Gives the findings of one result; none if it lacks what the claim is about.
    run : str
        What measures it: arguments of `vegas bench`.

    """

    title: str
    statement: str
    paper: str
    how: str
    kind: Kind
    measure: Callable[[Result], Iterable[Finding]]
    run: str

    @property
    def command(self) -> str:
        """Command line that measures it."""
        return f"vegas bench {self.run}"

    def found(self, sources: Sequence[Source]) -> list[tuple[Source, list[Finding]]]:
        """Compute the findings of every result that has some."""
        own = [(source, list(self.measure(source.result))) for source in sources if source.result.kind == self.kind]
        return [(source, findings) for source, findings in own if findings]

    def markdown(self, sources: Sequence[Source]) -> str:
        """Tell claim, paper's figure and ours."""
        lines = [f"## {self.title}", "", self.statement, ""]
        lines += [f"- Paper ({PAPER}): {self.paper}", f"- Ours: {self.how}", ""]
        found = self.found(sources)
        if not found:
            lines += ["**Not measured yet.** It is measured by", "", "```", self.command, "```", ""]
        for source, findings in found:
            lines += [
                f"{source.result.name}, {source.result.conditions} (`{source.name}`):",
                "",
                "| measured at | ours | |",
                "|---|---|---|",
            ]
            lines += [f"| {each.where} | {each.ours} | {each.verdict} |" for each in findings]
            lines += ["", *_repeated_by(source.result), ""]
        return "\n".join(lines)

    def to_dict(self, sources: Sequence[Source]) -> dict[str, Any]:
        """The same, fit for JSON."""
        told = {name: getattr(self, name) for name in ("title", "statement", "paper", "how", "command")}
        found = [
            {
                "file": source.name,
                "commands": source.result.commands,
                "findings": list(map(dataclasses.asdict, findings)),
            }
            for source, findings in self.found(sources)
        ]
        return {**told, "found": found}


def _repeated_by(result: Result) -> list[str]:
    """The commands that wrote a result; where those are no more, what they are replaced by."""
    if all(command.startswith("vegas ") for command in result.commands):
        return ["```", *result.commands, "```"]
    return [f"Measured with a script since replaced by `vegas bench {result.kind}`."]
