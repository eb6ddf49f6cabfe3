"""What a person sees of a search: a line for each trial that ends, and one that says how it stands."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial.cli.screens.live_line import LiveLine
from seatrial.cli.screens.run import ELAPSED_FROM_S, Screen
from seatrial.job.units import format_seconds
from seatrial.search.columns import best_in, columns
from seatrial.search.objective import Objective
from seatrial.search.search import Search
from seatrial.search.standing import best_of, in_words, seconds_left
from seatrial.search.trial import Trial

_LOOK_EVERY_S = 0.5


class SearchScreen(Screen):
    """Prints for one search, on standard error. Each trial has a thread, and prints, too."""

    def __init__(self, *, json: bool = False, whole: bool = False, quiet: bool = False) -> None:
        super().__init__(json=json, whole=whole, quiet=quiet)
        self._standing = self._live = LiveLine()
        self._looked_s, self._began_s = 0.0, time.monotonic()

    def show(self, search: Search) -> None:
        """How it stands, where there is room; called several times a second."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S or self.builds or self._quiet:
            return
        self._looked_s = now_s
        trials = search.study.trials()
        left_s = seconds_left(trials, search.expected, search.parallel, search.ends_at)
        with self._printing:
            words = in_words(trials, search.objective, search.expected, left_s)
            seconds = round(now_s - self._began_s)
            if self._standing.changes and seconds >= ELAPSED_FROM_S:
                words = f"{format_seconds(seconds)}: {words}"
            told = self._standing.show(words)
            if told is not None:
                self.say(told)

    def close(self) -> None:
        """Nothing of it stays on the terminal but what was said."""
        with self._printing:
            self._standing.clear()


def print_table(trials: Sequence[Trial], objective: Objective | None) -> None:
    """Settings, numbers (the best bold) and how each trial ended."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = columns(trials, objective)
    settings = list(trials[0].settings) if trials else []
    for title in ("trial", *settings, *(column.title for column in shown), "outcome"):
        table.add_column(title, overflow="fold")
    best = best_of(trials, objective)
    for trial in trials:
        cells = [Text(str(trial.number), style="bold" if trial is best else "")]
        cells += [Text(trial.settings.get(name, "")) for name in settings]
        for column in shown:
            value = column.number(trial)
            text = "" if value is None else f"{value:.4g}"
            cells.append(Text(text, style="bold" if best_in(trials, column) is trial else ""))
        outcome = trial.ending.outcome if trial.ending else trial.state
        table.add_row(*cells, Text(outcome))
    Console(highlight=False).print(table)
