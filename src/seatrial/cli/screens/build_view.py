"""A build as one line that changes: step, packages, megabytes a second, elapsed time. Its log is kept, for a failure.

In a log of ours, where no line can change, each step is a line, and so is what takes long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from seatrial.cli.screens.live_line import LiveLine
from seatrial.images.building.heartbeat import SO_FAR
from seatrial.images.building.progress import BuildProgress
from seatrial.images.building.ready import CACHED, READY

_LOOK_EVERY_S = 0.5

#: pip's longest dependency conflict and a compiler's errors fit; the first lines of a longer log are left out.
_MOST_LINES = 4000


class BuildView:
    """Takes the lines of a build, as a context manager; from another thread it draws.

    Args:
        printing: held by whoever prints on the terminal.
        say: prints a line of ours that stays. progress: one of the build's.
    """

    def __init__(self, printing: threading.RLock, say: Callable[[str], None], progress: Callable[[str], None]) -> None:
        self._printing, self._say, self._print = printing, say, progress
        self._live, self._state = LiveLine(), BuildProgress(time.monotonic())
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self._left_out = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="build-view", daemon=True)

    def __enter__(self) -> BuildView:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._live.clear()

    def line(self, text: str) -> None:
        """A line of the build's, or of what is made ready beside it."""
        with self._printing:
            if text.startswith(READY):
                self._live.clear()
                self._state.line(text, time.monotonic())
                self._say(", ".join([text, *(self._state.totals() if text != CACHED else [])]))
                self._log.clear()
                return
            self._left_out += len(self._log) == _MOST_LINES
            self._log.append(text)
            begun = self._state.line(text, time.monotonic())
            if not self._live.changes and (begun or SO_FAR.search(text)):
                self._print(self._state.step if begun else text)

    def print_log(self) -> None:
        """All that the build said."""
        with self._printing:
            if self._left_out:
                self._print(f"… {self._left_out:,} lines before")
            for line in self._log:
                self._print(line)
            self._log.clear()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            with self._printing:
                if self._live.changes and self._log:
                    self._live.show(self._state.words(time.monotonic()))
