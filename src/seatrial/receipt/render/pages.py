"""Render HTML pages in one look, values escaped; the receipt's is one file without scripts that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seatrial.findings.finding import CAUSE, FIX
from seatrial.receipt.model import Receipt, exit_words, headline, tiles, warnings
from seatrial.receipt.render.svg import draw, draw_bars, draw_stack, legend
from seatrial.receipt.section import Bars, Block, Log, Rows, Table, Times
from seatrial.system.text import visible

#: The package of this module: its templates are part of every other package's pages.
PACKAGE = "seatrial.receipt.render"
#: Width of a plot that spans two columns.
_WIDE = 784


class Chip(NamedTuple):
    """A state in a word or two: the class of look.css, and a mark, so that the colour adds no information."""

    colour: str
    mark: str


#: Levels by a receipt's outcome.
LEVELS = {
    "good": Chip("pass", "✓ "),
    "bad": Chip("fail", "✗ "),
    "warning": Chip("warning", "! "),
    "none": Chip("none", ""),
}

#: Marks by a criterion's weight.
VERDICTS = {
    "pass": Chip("pass", "✓ pass"),
    "fail": Chip("fail", "✗ fail"),
    "warning": Chip("warning", "! warning"),
    "not judged": Chip("none", "not judged"),
}

#: Levels by the state of a trial, a stage or a service.
STATES = {
    "done": Chip("pass", "✓ "),
    "unchanged": Chip("pass", "= "),
    "failed": Chip("fail", "✗ "),
    "stopped": Chip("warning", "! "),
    "running": Chip("live", "● "),
}
OTHER = Chip("none", "")


def render_page(package: str, name: str, **values: Any) -> str:
    """Return the page of a package's template: ``render_page("seatrial.monitor", "compare.html", …)``."""
    return visible(_environment(package).get_template(name).render(**values))


def compile_pages(package: str) -> None:
    """Compile a package's templates, so that its first page need not wait for that."""
    made = _environment(package)
    for name in made.list_templates():
        made.get_template(name)


@lru_cache(maxsize=1)
def style_sheet() -> str:
    return resources.files(PACKAGE).joinpath("look.css").read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def _environment(package: str) -> Environment:
    loader = ChoiceLoader([PackageLoader(package, "templates"), PackageLoader(PACKAGE, "templates")])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    made.globals.update(CAUSE=CAUSE, FIX=FIX, LEVELS=LEVELS, VERDICTS=VERDICTS, look=Markup(style_sheet()))
    # The drawings escape every name in them.
    made.filters.update(
        legend=legend,
        draw=lambda plot, window, styles=None: Markup(draw(plot, window, styles=styles)),
        wide=lambda plot, window, styles=None: Markup(draw(plot, window, styles=styles, width=_WIDE)),
        stack=draw_stack,
        histogram=lambda bars: Markup(draw_bars(bars)),
    )
    return made


def render(receipt: Receipt, *, embedded: bool = False) -> str:
    """Return the whole page; ``embedded`` in one that has heading, plots and the end of the logs, without them."""
    return render_page(
        PACKAGE,
        "receipt.html",
        receipt=receipt,
        embedded=embedded,
        headline=headline(receipt),
        judged_at=datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        exit_words=exit_words(receipt),
        warnings=warnings(receipt),
        words=receipt.outcome.words.partition("; not met: ")[0],  # the badge is followed by unmet criteria
        tiles=tiles(receipt),
        sections=list(_sections(receipt, embedded)),
    )


def _sections(receipt: Receipt, embedded: bool) -> Iterator[tuple[str, list[tuple[str, Block]]]]:
    """Yield (title, (kind, block) pairs); a block with a title of its own becomes a section."""
    for section, blocks in receipt.sections():
        if embedded and not section.embedded:
            continue
        own = [(block.title, block) for block in blocks if isinstance(block, (Bars, Rows)) and block.title]
        together = [block for block in blocks if block not in [each for _, each in own]]
        parts: list[tuple[str, list[Block]]] = [(section.title, together)]
        parts += [(title, [block]) for title, block in own]
        for title, each in parts:
            if drawn := [(type(block).__name__, block) for block in each if not _is_empty(block)]:
                yield title, drawn


def _is_empty(block: Block) -> bool:
    if isinstance(block, (Rows, Table)):
        return not block.rows
    return not block.lines if isinstance(block, Log) else isinstance(block, Times) and not block.entries
