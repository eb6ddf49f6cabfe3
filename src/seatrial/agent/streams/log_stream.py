"""The one log stream of a container: evidence, reports and both outputs as lines of seatrial.frames, through stdout."""

import threading
import time
from typing import Dict, Optional

from seatrial import frames
from seatrial.agent.streams.pass_through import PassThrough

_KINDS: Dict[int, bytes] = {1: frames.STDOUT, 2: frames.STDERR}

#: An unfinished line on a terminal, a prompt or a progress bar, goes out once it is so old. A bar that is drawn anew
#: a thousand times a second still makes twenty pieces of it.
PROMPT_S = 0.05


class LogStream:
    """Frames to stdout, whole ones only. Safe for two threads."""

    def __init__(self) -> None:
        self._out = PassThrough(1)
        self._lock = threading.Lock()

    def send(self, framed: bytes, *, keep: bool = False) -> None:
        """Send whole frames. ``keep``: evidence, which waits for a reader that stalls where output is let go."""
        with self._lock:
            self._out.write(framed, keep=keep)

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
    """One output stream's way into the log stream; where a plain PassThrough would be without one.

    Attributes:
        shows_prompts: a person looks on: lines that are not finished are sent as well.
    """

    def __init__(self, number: int, log: LogStream) -> None:
        self._splitter = frames.LineSplitter(_KINDS[number])
        self._log = log
        self.shows_prompts = False
        self._held_since_s: Optional[float] = None

    @property
    def waiting(self) -> bool:
        return self._log.waiting or self._held_since_s is not None

    @property
    def dropped_bytes(self) -> int:
        return self._log.dropped_bytes

    def write(self, data: bytes) -> None:
        """Send the lines that are complete."""
        framed = self._splitter.feed(data)
        if framed:
            self._log.send(framed)
        if not self.shows_prompts or not self._splitter.holds:
            self._held_since_s = None
        elif self._held_since_s is None or framed:
            self._held_since_s = time.monotonic()

    def flush(self, wait_s: float) -> None:
        """As PassThrough.flush; with time to wait it is the end, and an unfinished line goes out, too."""
        prompts = self._held_since_s is not None and time.monotonic() - self._held_since_s >= PROMPT_S
        if wait_s > 0 or prompts:
            self._log.send(self._splitter.flush())
            self._held_since_s = None
        self._log.flush(wait_s)
