"""How a build's progress is told, on a terminal and in a log; and, of one that fails, all that it said.

On a terminal one line changes (step, packages, megabytes a second, elapsed time). In a log, where no line can change,
each step is a line, and one more comes every EVERY_S seconds: packages of gigabytes take minutes without a word, and
whoever looks on must not think that it hangs. The line that stays is that the image is ready.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from seatrial.errors import SeatrialError
from seatrial.images.building.progress import BuildProgress
from seatrial.images.building.ready import CACHED, READY

#: In a log: long enough that an ordinary step is one line, short enough that nobody thinks that it has stopped.
EVERY_S = 20.0

_LOOK_EVERY_S = 0.5

#: pip's longest dependency conflict and a compiler's errors fit; the first lines of a longer log are left out.
_MOST_LINES = 4000


class Line(Protocol):
    """A line that changes, e.g. cli.screens.live_line.LiveLine."""

    def show(self, text: str) -> str | None: ...

    def clear(self) -> None: ...


class Telling:
    """Takes the lines of a build, as a context manager; from a thread of its own it tells how far it is.

    Args:
        say: prints a line of ours that stays. progress: one of the build's.
        live: draws a line over the one before; None: a log.
        whole: every line is printed as it comes.
        printing: held while something is printed.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        progress: Callable[[str], None],
        *,
        live: Line | None = None,
        whole: bool = False,
        printing: AbstractContextManager[object] | None = None,
    ) -> None:
        self._say, self._print = say, progress
        self._live, self._whole = None if whole else live, whole
        self._printing = printing or threading.RLock()
        self._state = BuildProgress(time.monotonic())
        self._told_s = time.monotonic()
        self._goes_on = False
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self._left_out = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="build", daemon=True)

    def __enter__(self) -> Telling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with self._printing:
            if self._live is not None:
                self._live.clear()
            if isinstance(error, SeatrialError) and not self._whole:
                self._print_log()

    def line(self, text: str) -> None:
        """A line of the build's, or of what is made ready beside it."""
        with self._printing:
            if text.startswith(READY):
                self._ready(text)
                return
            self._goes_on = True
            self._left_out += len(self._log) == _MOST_LINES
            self._log.append(text)
            begun = self._state.line(text, time.monotonic())
            if self._whole:
                self._tell(text)
            elif begun and self._live is None:
                self._tell(self._state.step)

    def _ready(self, text: str) -> None:
        if self._live is not None:
            self._live.clear()
        self._state.line(text, time.monotonic())
        self._say(", ".join([text, *(self._state.totals() if text != CACHED else [])]))
        self._log.clear()
        self._goes_on = False

    def _tell(self, text: str) -> None:
        self._told_s = time.monotonic()
        self._print(text)

    def _print_log(self) -> None:
        if self._left_out:
            self._print(f"… {self._left_out:,} lines before")
        for line in self._log:
            self._print(line)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            with self._printing:
                now_s = time.monotonic()
                if not self._goes_on:
                    continue
                if self._live is not None:
                    self._live.show(self._state.words(now_s))
                elif now_s - self._told_s >= EVERY_S:
                    self._tell(self._state.words(now_s))
