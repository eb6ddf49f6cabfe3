"""The outputs of several members on one terminal: whole lines, each behind the name of its member."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from seatrial.pipelines.request import Front
from seatrial.runs.following.output import Stream

#: A line that has not ended by then is passed on as it is: a progress bar writes no line feed at all.
_MOST_BYTES = 64 * 1024


class Lines:
    """Args:
    names: of all stages, for a common width.
    """

    def __init__(self, front: Front, names: Sequence[str]) -> None:
        self._front = front
        self._width = max((len(name) for name in names), default=0)
        self._rest: dict[tuple[str, Stream], bytes] = {}
        self._lock = threading.Lock()

    def writer(self, name: str) -> Callable[[Stream, bytes], None]:
        """Where a stage's output goes."""

        def write(stream: Stream, data: bytes) -> None:
            with self._lock:
                whole = self._rest.pop((name, stream), b"") + data
                cut = len(whole) if len(whole) > _MOST_BYTES else max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
                if rest := whole[cut:]:
                    self._rest[name, stream] = rest
                self._write(name, stream, whole[:cut])

        return write

    def end(self, name: str) -> None:
        """What a stage has printed last without a line's end."""
        streams: tuple[Stream, Stream] = ("stdout", "stderr")
        with self._lock:
            for stream in streams:
                self._write(name, stream, self._rest.pop((name, stream), b""))

    def _write(self, name: str, stream: Stream, data: bytes) -> None:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        prefix = f"{name:<{self._width}} | ".encode()
        if lines:
            self._front.write(stream, b"".join(prefix + line + b"\n" for line in lines))
