"""HTML pages from templates, all in one look. Whatever stands in a value is escaped; only our own drawings are not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seatrial.findings.finding import CAUSE, FIX
from seatrial.receipt.look.chip import LEVELS, VERDICTS
from seatrial.receipt.look.svg import draw, legend
from seatrial.receipt.plot import Plot

_LOOK = "seatrial.receipt.look"

#: A plot as wide as two beside one another.
_WIDE = 784


def render_page(room: str, name: str, **values: Any) -> str:
    """The page of a room's template: ``render_page("seatrial.reports", "compare.html", …)``."""
    return _environment(room).get_template(name).render(**values)


def compile_pages(room: str) -> None:
    """Compile a room's templates, so that the first page of it need not wait for that."""
    made = _environment(room)
    for name in made.list_templates():
        made.get_template(name)


@lru_cache(maxsize=1)
def style_sheet() -> str:
    """look.css."""
    return resources.files(_LOOK).joinpath("look.css").read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def _environment(room: str) -> Environment:
    loader = ChoiceLoader([PackageLoader(room, "templates"), PackageLoader(_LOOK, "templates")])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    made.globals.update(CAUSE=CAUSE, FIX=FIX, LEVELS=LEVELS, VERDICTS=VERDICTS, look=Markup(style_sheet()))
    made.filters["legend"] = legend
    made.filters["draw"] = _drawn
    made.filters["wide"] = _wide
    return made


def _drawn(plot: Plot, window: tuple[float, float] | None, styles: Sequence[str] | None = None) -> Markup:
    """svg.draw escapes every name in it."""
    return Markup(draw(plot, window, styles=styles))


def _wide(plot: Plot, window: tuple[float, float] | None, styles: Sequence[str] | None = None) -> Markup:
    return Markup(draw(plot, window, styles=styles, width=_WIDE))
