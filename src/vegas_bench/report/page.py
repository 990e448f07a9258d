"""Results as one page: which sections there are, and the HTML."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup

from vegas_bench.report import acceptance, kernels, throughput, tuning
from vegas_bench.report.html import Headline, template
from vegas_bench.report.loading import ReportError, Source
from vegas_bench.report.parts import Block, Chapter, Plot
from vegas_bench.report.svg import RC, inline_svg, save_files
from vegas_bench.report.tables import raw_table
from vegas_bench.results.results import Kind
from vegas_spec import __version__

_CHAPTERS: dict[Kind, Chapter] = {
    "throughput": throughput.CHAPTER,
    "acceptance": acceptance.CHAPTER,
    "tuning": tuning.CHAPTER,
    "kernels": kernels.CHAPTER,
}
_ENVIRONMENT_FIRST = ("hardware", "python", "versions", "date")


@dataclass(frozen=True)
class Report:
    """A finished page and the plots on it."""

    html: str
    sections: list[str]
    plots: list[Plot]

    def save_plots(self, folder: Path) -> list[Path]:
        """Write every plot as SVG and PNG; the folder is made.

        Raises
        ------
        ReportError
            If they cannot be written.

        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with matplotlib.rc_context(RC):
                return [path for plot in self.plots for path in save_files(plot.figure, folder / plot.name)]
        except OSError as error:
            raise ReportError(f"cannot write the plots to {folder}: {error.strerror}") from error


def make_report(sources: Sequence[Source], title: str = "Vegas report") -> Report:
    """Build the page from results; a section without data is left out."""
    with matplotlib.rc_context(RC):
        sections = {kind: blocks for kind in _CHAPTERS if (blocks := _blocks(kind, sources))}
        plots = [plot for blocks in sections.values() for block in blocks for plot in block.plots]
        drawn = {plot.name: Markup(inline_svg(plot.figure, plot.name, plot.caption)) for plot in plots}
    html = template("report.html.j2").render(
        title=title,
        version=__version__,
        subtitle=_subtitle(sources),
        headlines=[each for kind in _CHAPTERS for each in _headlines(kind, sources)],
        sections=[(kind, _CHAPTERS[kind], blocks) for kind, blocks in sections.items()],
        drawn=drawn,
        raw=[raw_table(source.result, source.name) for source in sources],
        environments=[_environment(source) for source in sources],
    )
    return Report(html, [*sections, "raw", "environment", "commands"], plots)


def _of_kind(kind: Kind, sources: Sequence[Source]) -> list[Source]:
    return [source for source in sources if source.result.kind == kind and source.result.rows]


def _blocks(kind: Kind, sources: Sequence[Source]) -> list[Block]:
    own, blocks = _of_kind(kind, sources), []
    for number, source in enumerate(own, start=1):
        result, several = source.result, len(own) > 1
        block = _CHAPTERS[kind].block(result, f"{kind}-{number}" if several else kind)
        about = "; ".join(part for part in (result.conditions, block.about) if part)
        heading = f"{result.name} ({source.name})" if several else result.name
        notes = [*block.notes, *result.notes]
        blocks.append(dataclasses.replace(block, heading=heading, about=about, notes=notes))
    return blocks


def _headlines(kind: Kind, sources: Sequence[Source]) -> Iterator[Headline]:
    """A kind's headlines, with what they were measured on, and in which file where others were measured on the same."""
    own = {source.name: f"{source.result.name}, {source.result.hardware}" for source in _of_kind(kind, sources)}
    times = Counter(own.values())
    for source in _of_kind(kind, sources):
        about = own[source.name]
        file = f" ({source.name})" if times[about] > 1 else ""
        for each in _CHAPTERS[kind].headlines(source.result):
            conditions = ", ".join(part for part in (about, each.conditions) if part)
            yield dataclasses.replace(each, conditions=f"{conditions}{file}")


def _subtitle(sources: Sequence[Source]) -> str:
    models = dict.fromkeys(source.result.model for source in sources if source.result.kind != "kernels")
    return " · ".join([", ".join(models) or "Kernels", *dict.fromkeys(source.result.hardware for source in sources)])


def _environment(source: Source) -> dict[str, Any]:
    result, about = source.result, source.result.environment
    versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items() if version)
    entries = [("kind", result.kind), ("model", result.model), ("hardware", result.hardware)]
    entries += [("date", about.get("date", "")), ("Python", about.get("python", "")), ("versions", versions)]
    entries += [(key, _plain(value)) for key, value in about.items() if key not in _ENVIRONMENT_FIRST]
    entries += [(key.replace("_", " "), _plain(value)) for key, value in result.settings.items()]
    shown = [(key, value) for key, value in entries if value]
    return {"name": source.name, "entries": shown, "commands": result.commands}


def _plain(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
        case list() | tuple():
            return ", ".join(_plain(each) for each in value)
        case float():
            return f"{value:.6g}"
        case None:
            return ""
        case _:
            return str(value)
