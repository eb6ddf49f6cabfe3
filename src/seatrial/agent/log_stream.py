"""The one log stream of a pod: both outputs and the evidence as lines of seatrial.frames, through stdout."""

import os
import threading
from typing import Dict

from seatrial import frames
from seatrial.agent.pass_through import PassThrough
from seatrial.agent.redaction import Redactor

_KINDS: Dict[int, bytes] = {1: frames.STDOUT, 2: frames.STDERR}

#: One read of events.jsonl.
_CHUNK_BYTES = 1 << 20


class LogStream:
    """Copies what is new in events.jsonl, by whomever, and the target's output to stdout. Safe for two threads.

    Args:
        events_path: what is in it already came from an earlier pod, which has sent it.
    """

    def __init__(self, events_path: str) -> None:
        self.redactor = Redactor([])
        self._out = PassThrough(1)
        self._lock = threading.Lock()
        self._path = events_path
        self._offset = os.path.getsize(events_path) if os.path.exists(events_path) else 0

    def send_events(self) -> None:
        """Send the lines of events.jsonl that are complete and not sent yet."""
        with self._lock:
            try:
                with open(self._path, "rb") as file:
                    file.seek(self._offset)
                    data = file.read(_CHUNK_BYTES)
            except OSError:
                return
            end = data.rfind(b"\n") + 1
            self._offset += end
            for line in (self.redactor.feed(data[:end]) + self.redactor.flush()).splitlines():
                self._out.write(frames.encode(frames.EVIDENCE, line))

    def send(self, framed: bytes) -> None:
        with self._lock:
            self._out.write(framed)

    def flush(self, wait_s: float) -> None:
        with self._lock:
            self._out.flush(wait_s)

    @property
    def waiting(self) -> bool:
        return self._out.waiting

    @property
    def dropped_bytes(self) -> int:
        return self._out.dropped_bytes


class FramedOutput:
    """One output stream's way into the log stream; where a plain PassThrough would be in a container."""

    def __init__(self, number: int, log: LogStream) -> None:
        self._splitter = frames.LineSplitter(_KINDS[number])
        self._log = log

    @property
    def waiting(self) -> bool:
        return self._log.waiting

    @property
    def dropped_bytes(self) -> int:
        return self._log.dropped_bytes

    def write(self, data: bytes) -> None:
        """Send the lines that are complete."""
        framed = self._splitter.feed(data)
        if framed:
            self._log.send(framed)

    def flush(self, wait_s: float) -> None:
        """As PassThrough.flush; with time to wait it is the end, and an unfinished line goes out, too."""
        if wait_s > 0:
            self._log.send(self._splitter.flush())
        self._log.flush(wait_s)
