"""Results as one page: which sections there are, and the HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup

from vegas_bench.report.acceptance import acceptance_block, acceptance_headlines
from vegas_bench.report.html import Headline, template
from vegas_bench.report.kernels import kernels_block, kernels_headlines
from vegas_bench.report.loading import ReportError, Source
from vegas_bench.report.parts import Block, Plot, Section
from vegas_bench.report.svg import RC, inline_svg, save_files
from vegas_bench.report.tables import raw_table
from vegas_bench.report.throughput import throughput_block, throughput_headlines
from vegas_bench.report.tuning import tuning_block, tuning_headlines
from vegas_bench.results.results import Kind, Result
from vegas_spec import __version__

_SECTIONS: dict[Kind, tuple[str, str]] = {
    "throughput": (
        "Throughput",
        "Tokens per second while decoding, all sides in one run on one machine; plain decoding is 1.",
    ),
    "acceptance": (
        "Acceptance",
        "How many drafts the full model accepts. Every policy drafts for the same prompts; the output is the full "
        "model's, whoever drafts.",
    ),
    "tuning": ("Tuning", "Budget and draft length for one workload, by measurement, in three steps."),
    "kernels": ("Kernels", "One layer's attention on its own, against what memory bandwidth allows."),
}
_BLOCKS: dict[Kind, Callable[[Result, str, str, str], Block]] = {
    "throughput": throughput_block,
    "acceptance": acceptance_block,
    "tuning": tuning_block,
    "kernels": kernels_block,
}
_HEADLINES: dict[Kind, Callable[[Result, str], list[Headline]]] = {
    "throughput": throughput_headlines,
    "acceptance": acceptance_headlines,
    "tuning": tuning_headlines,
    "kernels": kernels_headlines,
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
        sections = [section for kind in _SECTIONS if (section := _section(kind, sources)).blocks]
        plots = [plot for section in sections for block in section.blocks for plot in block.plots]
        drawn = {plot.name: Markup(inline_svg(plot.figure, plot.name, plot.caption)) for plot in plots}
    html = template("report.html.j2").render(
        title=title,
        version=__version__,
        subtitle=_subtitle(sources),
        headlines=[each for kind in _SECTIONS for each in _headlines(kind, sources)],
        sections=sections,
        drawn=drawn,
        raw=[raw_table(source.result, source.name) for source in sources],
        environments=[_environment(source) for source in sources],
    )
    names = [section.name for section in sections] + ["raw", "environment", "commands"]
    return Report(html, names, plots)


def _section(kind: Kind, sources: Sequence[Source]) -> Section:
    title, lead = _SECTIONS[kind]
    section = Section(kind, title, lead)
    own = [source for source in sources if source.result.kind == kind and source.result.rows]
    for number, source in enumerate(own, start=1):
        prefix = kind if len(own) == 1 else f"{kind}-{number}"
        result = source.result
        section.blocks.append(_BLOCKS[kind](result, prefix, result.model, _conditions(result)))
    return section


def _headlines(kind: Kind, sources: Sequence[Source]) -> list[Headline]:
    return [
        headline
        for source in sources
        if source.result.kind == kind and source.result.rows
        for headline in _HEADLINES[kind](source.result, f"{source.result.model}, {_hardware(source.result)}")
    ]


def _hardware(result: Result) -> str:
    return str(result.environment.get("hardware", "unknown hardware"))


def _conditions(result: Result) -> str:
    """Hardware, versions and the settings that all rows share, in one line."""
    versions = result.environment.get("versions") or {}
    settings = (str(result.settings.get(key) or "").removeprefix("torch.") for key in ("dtype", "engine"))
    parts = [_hardware(result), *(value for value in settings if value)]
    parts += [f"{name} {version}" for name, version in versions.items() if version and name in ("torch", "vllm")]
    return ", ".join(parts)


def _subtitle(sources: Sequence[Source]) -> str:
    models = dict.fromkeys(source.result.model for source in sources if source.result.kind != "kernels")
    machines = dict.fromkeys(str(source.result.environment.get("hardware", "")) for source in sources)
    return " · ".join([", ".join(models) or "Kernels", ", ".join(name for name in machines if name)])


def _environment(source: Source) -> dict[str, Any]:
    about = source.result.environment
    versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items() if version)
    entries = [("kind", source.result.kind), ("model", source.result.model), ("hardware", about.get("hardware", ""))]
    entries += [("date", about.get("date", "")), ("Python", about.get("python", "")), ("versions", versions)]
    entries += [(key, _plain(value)) for key, value in about.items() if key not in _ENVIRONMENT_FIRST]
    entries += [(key.replace("_", " "), _plain(value)) for key, value in source.result.settings.items()]
    shown = [(key, value) for key, value in entries if value]
    return {"name": source.name, "entries": shown, "command": source.result.command}


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
