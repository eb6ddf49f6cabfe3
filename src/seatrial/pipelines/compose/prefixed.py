"""Outputs of several services in one stream, whole lines, each behind the name of its service."""

from __future__ import annotations

import threading
from collections.abc import Callable

from seatrial.runs.following.output import Stream

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")

Write = Callable[[Stream, bytes], None]


class Prefixed:
    """Makes a ``write`` for each service; they may be called from threads of their own.

    Args:
        names: of all services, for the width.
    """

    def __init__(self, names: list[str], write: Write) -> None:
        self._width = max(map(len, names), default=0)
        self._write, self._lock = write, threading.Lock()
        self._unfinished: dict[tuple[str, Stream], bytes] = {}

    def of(self, name: str) -> Write:
        """For the output of one service."""
        return lambda stream, data: self._take(name, stream, data)

    def _take(self, name: str, stream: Stream, data: bytes) -> None:
        with self._lock:
            data = self._unfinished.pop((name, stream), b"") + data
            whole, newline, rest = data.rpartition(b"\n")
            if rest:
                self._unfinished[name, stream] = rest
            if newline:
                self._put(name, stream, whole)

    def finish(self, name: str) -> None:
        """What a service has printed without the end of its line."""
        with self._lock:
            for stream in _STREAMS:
                if rest := self._unfinished.pop((name, stream), b""):
                    self._put(name, stream, rest)

    def _put(self, name: str, stream: Stream, lines: bytes) -> None:
        prefix = f"{name:<{self._width}} | ".encode()
        # A progress bar draws over its own line; behind a prefix the last of its states is enough.
        shown = [prefix + line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines.split(b"\n")]
        self._write(stream, b"\n".join(shown) + b"\n")
