"""The steps of a receipt: the bar and the plot over the run, from the lines of the hook, hostile ones too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from seatrial.receipt.model import Receipt
from seatrial.receipt.render import html, markdown
from seatrial.receipt.render.svg import draw_stack
from seatrial.receipt.section import STEPS_PLOT, Line, Plot, Shares
from seatrial.receipt.sections.steps import stacked_plot

from .conftest import Scenario, at, blocks_of, ending, prologue, rows_of, running


def told(second: float, **spent: float) -> dict[str, Any]:
    anatomy = {"pid": 7, "steps": 10 * second, "seconds": second, "regions": spent}
    return at(5 + second, "step", "target", anatomy=anatomy)


def receipt_of(folder: Path, *lines: dict[str, Any]) -> Receipt:
    events = prologue() + [event for event in running(12) if event["type"] != "step"] + [*lines] + ending(30)
    return Scenario(sorted(events, key=lambda event: event["t"]), backend="local").judge(folder)


def plot_of(receipt: Receipt) -> Plot:
    return next(plot for plot in receipt.plots if plot.id == STEPS_PLOT)


def test_shares_are_of_the_time_since_the_line_before_and_add_up(tmp_path: Path) -> None:
    receipt = receipt_of(
        tmp_path,
        told(2, data=1.0, backward=1.0),
        told(4, data=1.5, backward=2.5),
        told(10, data=1.5, backward=2.5, evaluation=6.0),
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


def test_a_long_run_is_put_together_and_the_shares_stay_true(tmp_path: Path) -> None:
    lines = [told(second / 100, data=second / 400, other=3 * second / 400) for second in range(1, 2001)]
    receipt = receipt_of(tmp_path, *lines)
    plot = plot_of(receipt)
    assert len(plot.lines[0].points) < 600 and stacked_plot(receipt) is plot
    assert {round(y) for _, y in plot.lines[0].points} == {25}


def test_a_part_has_one_colour_in_the_bar_and_in_the_plot(tmp_path: Path) -> None:
    receipt = receipt_of(tmp_path, told(1, data=0.5, backward=0.5), told(2, data=1.0, backward=1.0))
    _, _, page = html.render(receipt).partition('<div class="stack"')
    shares, _ = blocks_of(receipt, "Steps")
    assert isinstance(shares, Shares) and len({part.colour for part in shares.parts}) == 2
    for part in shares.parts:
        assert f'<span class="{part.colour}" style' in page and f'<i class="{part.colour}">' in page
        assert f'class="area {part.colour}"' in page


def test_the_words_are_the_same_everywhere(tmp_path: Path) -> None:
    receipt = receipt_of(tmp_path, told(1, data=0.75, other=0.25), told(2, data=1.5, other=0.5))
    [_, data, other, *_] = rows_of(receipt, "Steps").values()
    assert data.endswith("75 %  78.9 ms a step") and other.endswith("25 %  26.3 ms a step")
    assert "78.9 ms" in markdown.render(receipt) and "78.9 ms" in html.render(receipt)


@pytest.mark.parametrize(
    "line",
    [
        {"regions": {"data": "<script>", "<script>": 1.0}},
        {"regions": {"data": float("inf"), "backward": -1}},
        {"regions": {}},
        {"regions": [1]},
    ],
)
def test_whatever_the_target_writes_there_is_a_page(line: dict[str, Any], tmp_path: Path) -> None:
    lines = [at(5 + n, "step", "target", anatomy={"pid": 7, "steps": n, "seconds": n, **line}) for n in (1, 2, 3)]
    page = html.render(receipt_of(tmp_path, *lines))
    assert "<script" not in page and not re.search(r'd="[^"]*(nan|inf)', page)


def test_lines_of_a_receipt_of_before_are_drawn_as_lines(tmp_path: Path) -> None:
    receipt = receipt_of(tmp_path, told(1, data=1.0), told(2, data=1.0, evaluation=1.0), told(3, data=2, evaluation=1))
    a, b = plot_of(receipt).lines
    lines = (a, Line(name=b.name, points=b.points[2:]))
    old = Plot(id=STEPS_PLOT, title="Where the time went", unit="%", x="seconds", lines=lines)
    page = html.render(receipt.model_copy(update={"plots": (old,)}))
    assert 'class="area' not in page and "Where the time went (%)" in page
