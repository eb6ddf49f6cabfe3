"""While a build prints nothing: what it is at and for how long. Packages of gigabytes take minutes without a line."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import TracebackType

from seatrial.images.building.build_failure import step_in_words

#: Long enough that an ordinary build says nothing of it, short enough that nobody thinks it has stopped.
EVERY_S = 20.0

#: How a line of ours ends.
SO_FAR = re.compile(r": \d+ min \d\d s so far$")


class Heartbeat:
    """Pass lines on with ``line``; after ``every_s`` without one, and then as often, say what goes on.

    A thread of its own says it: as a context manager, it ends with the block.
    """

    def __init__(self, say: Callable[[str], None], *, every_s: float = EVERY_S) -> None:
        self._say, self._every_s = say, every_s
        self._started_s = self._last_s = time.monotonic()
        self._doing = "building the image"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def line(self, text: str) -> None:
        """A line of the build's."""
        self._last_s = time.monotonic()
        self._doing = step_in_words(text) or self._doing
        self._say(text)

    def _watch(self) -> None:
        while not self._ended.wait(max(0.0, self._last_s + self._every_s - time.monotonic())):
            now = time.monotonic()
            if now - self._last_s >= self._every_s:
                minutes, seconds = divmod(round(now - self._started_s), 60)
                self._say(f"{self._doing}: {minutes} min {seconds:02d} s so far")
                self._last_s = now
