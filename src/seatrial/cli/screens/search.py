"""What a person sees of a search: a line for each trial that ends, and one that says how it stands."""

from __future__ import annotations

import time

from seatrial.cli.screens.live_line import LiveLine
from seatrial.cli.screens.run import ELAPSED_FROM_S, Screen
from seatrial.job.units import format_seconds
from seatrial.search.results import seconds_left, summary_line
from seatrial.search.search import Search

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
            words = summary_line(trials, search.objective, search.expected, left_s)
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
