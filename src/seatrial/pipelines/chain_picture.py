"""The graph of a group as SVG: members in columns by what they need, coloured by how they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from seatrial.job.units import format_seconds
from seatrial.pipelines.chain import Chain, Link, missed_criteria

#: User units; the page scales the picture to its column.
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 168, 52, 64, 18, 4
_MOST_LETTERS = 21

#: State → class of the page.
_CLASSES = {"done": "good", "unchanged": "same", "failed": "bad", "stopped": "bad", "running": "live"}
_MARKS = {"done": "✓", "unchanged": "=", "failed": "✗", "stopped": "✗", "running": "…"}


def draw(chain: Chain) -> str:
    """One ``<svg>``. Every name in it is escaped."""
    columns = _columns(chain.links)
    places = {
        link.name: (_MARGIN + column * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
        for column, links in enumerate(columns)
        for row, link in enumerate(links)
    }
    width = 2 * _MARGIN + len(columns) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + max((len(links) for links in columns), default=0) * (_HEIGHT + _GAP_Y) - _GAP_Y
    parts = [
        f'<svg class="graph" viewBox="0 0 {width} {height}" style="max-width:{width}px;min-width:{min(width, 420)}px" '
        f'role="img" aria-label="{escape(_summary(chain))}">'
    ]
    by_name = {link.name: link for link in chain.links}
    for link in chain.links:
        parts += [_edge(places, need, link, by_name) for need in link.needs if need in places]
    parts += [_box(link, *places[link.name]) for link in chain.links]
    return "".join([*parts, "</svg>"])


def _columns(links: Sequence[Link]) -> list[list[Link]]:
    """A member's column is one after the last of what it needs; within one, near to what it needs."""
    depth: dict[str, int] = {}
    names = {link.name for link in links}
    for _ in links:  # in whatever order they are listed; what needs itself ends with the loop
        for link in links:
            depth[link.name] = max((depth.get(need, 0) + 1 for need in link.needs if need in names), default=0)
    columns: list[list[Link]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for link in links:
        columns[depth[link.name]].append(link)
    rows: dict[str, float] = {}
    for column in columns:
        column.sort(key=lambda link: sum(rows.get(need, 0.0) for need in link.needs) / max(1, len(link.needs)))
        rows.update({link.name: float(row) for row, link in enumerate(column)})
    return columns


def _edge(places: Mapping[str, tuple[int, int]], need: str, link: Link, by_name: Mapping[str, Link]) -> str:
    (x, y), (to_x, to_y) = places[need], places[link.name]
    x, y, to_y = x + _WIDTH, y + _HEIGHT // 2, to_y + _HEIGHT // 2
    bend = max(_GAP_X // 2, (to_x - x) // 2)
    broken = any(piece.of == need and piece.intact is False for piece in link.read)
    held = by_name[need].state in ("done", "unchanged") and not broken
    off = "" if held else " off"
    return (
        f'<path class="edge{off}" d="M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x - 6} {to_y}"/>'
        f'<path class="tip{off}" d="M{to_x} {to_y}l-8 -4v8z"/>'
    )


def _box(link: Link, x: int, y: int) -> str:
    name = link.name if len(link.name) <= _MOST_LETTERS else link.name[: _MOST_LETTERS - 1] + "…"
    state = "failed" if missed_criteria(link) else link.state
    mark = _MARKS.get(state, "–")
    facts = ["criteria not met" if missed_criteria(link) else link.state]
    if link.seconds is not None:
        facts.append(format_seconds(link.seconds))
    if link.gpus:
        facts.append(f"{link.gpus} GPU{'s' * (link.gpus > 1)}")
    return (
        f'<g class="box {_CLASSES.get(state, "off")}"><title>{escape(link.target)}: {escape(link.verdict)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{x + 12}" y="{y + 22}">{mark} {escape(name)}</text>'
        f'<text x="{x + 12}" y="{y + 40}">{escape(" · ".join(facts))}</text></g>'
    )


def _summary(chain: Chain) -> str:
    """The picture in words, for those who do not see it."""
    after = (f"{link.name} after {', '.join(link.needs)}" if link.needs else link.name for link in chain.links)
    return "; ".join(after)
