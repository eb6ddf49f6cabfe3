"""The steps of a receipt: the bar and the plot over the run, from the lines of the hook, hostile ones too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from seatrial.receipt.model import Receipt
from seatrial.receipt.render import markdown, pages
from seatrial.receipt.render.svg import draw_stack
from seatrial.receipt.section import STEPS_PLOT, Line, Plot, Shares
from seatrial.receipt.sections.steps import stacked_plot

from .conftest import Scenario, at, blocks_of, ending, prologue, rows_of, running


def line_at(second: float, **spent: float) -> dict[str, Any]:
    anatomy = {"pid": 7, "steps": 10 * second, "seconds": second, "regions": spent}
    return at(5 + second, "step", "target", anatomy=anatomy)


def receipt_of(folder: Path, *lines: dict[str, Any]) -> Receipt:
    events = prologue() + [event for event in running(12) if event["type"] != "step"] + [*lines] + ending(30)
    return Scenario(sorted(events, key=lambda event: event["t"]), backend="local").judge(folder)


def plot_of(receipt: Receipt) -> Plot:
    return next(plot for plot in receipt.plots if plot.id == STEPS_PLOT)


def test_shares_are_of_the_time_since_the_last_line_and_add_up(tmp_path: Path) -> None:
    receipt = receipt_of(
        tmp_path,
        line_at(2, data=1.0, backward=1.0),
        line_at(4, data=1.5, backward=2.5),
        line_at(10, data=1.5, backward=2.5, evaluation=6.0),
    )
    plot = plot_of(receipt)
    shares = {line.name: [y for _, y in line.points] for line in plot.lines}
    assert shares == {
        "waiting for data": [50, 50, 25, 0],
        "backward pass": [50, 50, 75, 0],
        "evaluation": [0, 0, 0, 100],
    }
    assert [x for x, _ in plot.lines[0].points] == [5, 7, 9, 15] and stacked_plot(receipt) is plot
    svg, ticks = draw_stack(plot, ["line0", "line1", "line2"])
    assert svg.count("<path") == 3 and "H1000.0" in svg and "<text" not in svg
    assert all(0 <= percent <= 100 for percent, _ in ticks) and ticks[-1][1].endswith(" s")


def test_many_lines_are_joined_and_the_shares_stay(tmp_path: Path) -> None:
    lines = [line_at(second / 100, data=second / 400, other=3 * second / 400) for second in range(1, 2001)]
    receipt = receipt_of(tmp_path, *lines)
    plot = plot_of(receipt)
    assert len(plot.lines[0].points) < 600 and stacked_plot(receipt) is plot
    assert {round(y) for _, y in plot.lines[0].points} == {25}


def test_part_has_one_colour_and_one_time_everywhere(tmp_path: Path) -> None:
    receipt = receipt_of(tmp_path, line_at(1, data=0.5, backward=0.5), line_at(2, data=1.0, backward=1.0))
    _, _, page = pages.render(receipt).partition('<div class="stack"')
    shares, _ = blocks_of(receipt, "Steps")
    assert isinstance(shares, Shares) and len({part.colour for part in shares.parts}) == 2
    for part in shares.parts:
        assert f'<span class="{part.colour}" style' in page and f'<i class="{part.colour}">' in page
        assert f'class="area {part.colour}"' in page
    [_, data, *_] = rows_of(receipt, "Steps").values()
    assert data.endswith("50 %  52.6 ms a step") and "52.6 ms" in markdown.render(receipt) and "52.6 ms" in page


@pytest.mark.parametrize(
    "line",
    [
        {"regions": {"data": "<script>", "<script>": 1.0}},
        {"regions": {"data": float("inf"), "backward": -1}},
        {"regions": {}},
        {"regions": [1]},
    ],
)
def test_unusable_lines_do_not_break_the_page(line: dict[str, Any], tmp_path: Path) -> None:
    lines = [at(5 + n, "step", "target", anatomy={"pid": 7, "steps": n, "seconds": n, **line}) for n in (1, 2, 3)]
    page = pages.render(receipt_of(tmp_path, *lines))
    assert "<script" not in page and not re.search(r'd="[^"]*(nan|inf)', page)


def test_steps_of_an_older_receipt_are_drawn_as_lines(tmp_path: Path) -> None:
    receipt = receipt_of(
        tmp_path, line_at(1, data=1.0), line_at(2, data=1.0, evaluation=1.0), line_at(3, data=2, evaluation=1)
    )
    a, b = plot_of(receipt).lines
    lines = (a, Line(name=b.name, points=b.points[2:]))
    old = Plot(id=STEPS_PLOT, title="Where the time went", unit="%", x="seconds", lines=lines)
    page = pages.render(receipt.model_copy(update={"plots": (old,)}))
    assert 'class="area' not in page and "Where the time went (%)" in page
