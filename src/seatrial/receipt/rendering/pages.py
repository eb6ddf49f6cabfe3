"""HTML pages from the templates beside this file. Whatever stands in a value is escaped; only our own plots are not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seatrial.findings.labels import CAUSE, FIX
from seatrial.receipt.model import Plot
from seatrial.receipt.rendering.svg import draw, legend


def render_page(name: str, **values: Any) -> str:
    """The page of a template, ``receipt.html`` for example."""
    return _environment().get_template(name).render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("seatrial.receipt.rendering", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    made.globals.update(CAUSE=CAUSE, FIX=FIX)
    made.filters["legend"] = legend
    made.filters["draw"] = _drawn
    return made


def _drawn(plot: Plot, window: tuple[float, float] | None) -> Markup:
    """svg.draw escapes every name in it."""
    return Markup(draw(plot, window))
