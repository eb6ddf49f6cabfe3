"""The screen of a search: a line for each trial that ends, a line with the progress, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial.cli import terminal
from seatrial.cli.screen import ELAPSED_FROM_S, Screen
from seatrial.cli.terminal import LiveLine
from seatrial.job.units import format_seconds
from seatrial.search.request import Objective
from seatrial.search.results import best_in, best_of, columns, seconds_left, summary_line
from seatrial.search.search import Search
from seatrial.search.trial import Trial

_LOOK_EVERY_S = 0.5


class SearchScreen(Screen):
    """Prints for one search, on standard error. Each trial has a thread and prints, too."""

    def __init__(self, *, json: bool = False, whole: bool = False, quiet: bool = False) -> None:
        super().__init__(json=json, whole=whole, quiet=quiet)
        self._standing = self._live = LiveLine()
        self._looked_s, self._began_s = 0.0, time.monotonic()

    def show(self, search: Search) -> None:
        """Show the progress where there is space; called several times a second."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S or self.builds or self._quiet:
            return
        self._looked_s = now_s
        trials = search.study.trials()
        left_s = seconds_left(trials, search.expected, search.parallel, search.ends_at)
        with self._printing:
            words = summary_line(trials, search.objective, search.expected, left_s)
            seconds = round(now_s - self._began_s)
            if self._standing.changes and seconds >= ELAPSED_FROM_S:
                words = f"{format_seconds(seconds)}: {words}"
            line = self._standing.show(words)
            if line is not None:
                self.note(line)

    def close(self) -> None:
        """Remove the line with the progress from the terminal."""
        with self._printing:
            self._standing.clear()


#: Columns of a terminal that outcomes get at least; they go on in the next line.
_LEAST_OUTCOME = 16

#: Between two columns.
_GAP = 2


@dataclass(frozen=True)
class _Column:
    title: str
    cells: Sequence[Text]

    @property
    def width(self) -> int:
        return max(len(self.title), *(len(cell) for cell in self.cells))


def print_table(trials: Sequence[Trial], objective: Objective | None, console: Console | None = None) -> None:
    """Print settings, numbers (the best bold) and each trial's end. Without a terminal nothing is left out."""
    if not trials:
        return
    console = console or terminal.console()
    best = best_of(trials, objective)
    trial = _Column("trial", [Text(str(each.number), style="bold" if each is best else "") for each in trials])
    settings = [_Column(name, [Text(each.settings.get(name, "")) for each in trials]) for name in trials[0].settings]
    numbers = _numbers(trials, objective)
    outcome = _Column("outcome", [Text(each.ending.outcome if each.ending else each.state) for each in trials])
    every = [trial, *settings, *numbers, outcome]
    if not console.is_terminal:
        console.width = _width(every)
    shown = numbers[:1]
    space = console.width - _width([trial, *shown]) - min(outcome.width, _LEAST_OUTCOME) - 2 * _GAP
    if _width(settings) <= space:
        space -= _width(settings)
    else:
        settings = [_Column("settings", [Text(each.label) for each in trials])]
        longest = max(len(f"{name}={value}") for each in trials for name, value in each.settings.items())
        space -= max(longest, space // 2)
    for number in numbers[1:]:
        space -= number.width + _GAP
        if space < 0:
            break
        shown.append(number)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (trial, *settings, *shown, outcome):
        table.add_column(column.title, no_wrap=column is trial or column in shown, overflow="fold")
    for row in zip(*(column.cells for column in (trial, *settings, *shown, outcome)), strict=True):
        table.add_row(*row)
    console.print(table)
    if left_out := [column.title for column in numbers[len(shown) :]]:
        console.print(Text(f"too narrow for {', '.join(left_out)}: see the page, or --json", style="dim"))


def _numbers(trials: Sequence[Trial], objective: Objective | None) -> list[_Column]:
    """Return a column for each number, its best bold."""
    found = []
    for column in columns(trials, objective):
        best, values = best_in(trials, column), [column.number(each) for each in trials]
        texts = ["" if value is None else f"{value:.4g}" for value in values]
        styles = ["bold" if best is each else "" for each in trials]
        found.append(_Column(column.title, [Text(*each) for each in zip(texts, styles, strict=True)]))
    return found


def _width(listed: Sequence[_Column]) -> int:
    """Return the width of columns and the gaps between them."""
    return sum(column.width for column in listed) + _GAP * max(0, len(listed) - 1)
