"""Pages that stand alone: one look, one set of colours, nothing loaded from anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup

from vegas_bench.report import palette


@dataclass(frozen=True)
class Headline:
    """A headline figure: the number, what it is, and under which conditions."""

    value: str
    label: str
    conditions: str = ""


def template(name: str) -> jinja2.Template:
    """Give a page's template, with style, script and colours at hand."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vegas_bench.report", "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    folder = resources.files("vegas_bench.report") / "assets"
    environment.globals.update(
        asset=lambda file: Markup((folder / file).read_text("utf-8")),
        light=Markup(palette.css_variables(dark=False)),
        dark=Markup(palette.css_variables(dark=True)),
    )
    return environment.get_template(name)
