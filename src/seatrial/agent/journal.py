"""The agent's pen on events.jsonl: a full disk costs the line, never the run. In a pod the log stream gets it, too."""

import sys
from typing import Any, List, Union

from seatrial.agent.log_stream import FramedOutput, LogStream
from seatrial.agent.pass_through import PassThrough
from seatrial.agent.redaction import Redactor
from seatrial.events import EventLog


class Journal:
    """Writes events. Losing some is said once, on the agent's own stderr.

    Args:
        framed: what is written, by the target as well, also goes to stdout as frames.
    """

    def __init__(self, path: str, framed: bool = False) -> None:
        self.path = path
        self._stream = LogStream(path) if framed else None
        self._log = EventLog(path, "agent")
        self._complained = False

    def write(self, type: str, **keys: Any) -> None:
        """One event, or a complaint when it cannot be written."""
        try:
            self._log.write(type, **keys)
        except OSError as error:
            if not self._complained:
                self._complained = True
                say("events are being lost: %s: %s" % (self.path, error.strerror))

        if self._stream is not None:
            self._stream.send_events()

    def way_out(self, number: int) -> "Union[PassThrough, FramedOutput]":
        """Where the target's stdout (1) or stderr (2) is passed on to."""
        return PassThrough(number) if self._stream is None else FramedOutput(number, self._stream)

    def hide(self, secrets: "List[bytes]") -> None:
        """Cut these out of events that leave by the log stream."""
        if self._stream is not None:
            self._stream.redactor = Redactor(secrets)

    def flush(self, wait_s: float) -> None:
        """Wait for the log stream's reader."""
        if self._stream is not None:
            self._stream.flush(wait_s)

    def note(self, message: str) -> None:
        """A sentence for the receipt's timeline."""
        self.write("note", message=message)


def say(message: str) -> None:
    """A line on the agent's own stderr, which engines keep. Nobody may be listening any more."""
    try:
        sys.stderr.write("seatrial: %s\n" % message)
        sys.stderr.flush()
    except OSError:
        pass
