"""The agent's pen on events.jsonl: a full disk costs the line, never the run."""

import sys
from typing import Any

from seatrial.events import EventLog


class Journal:
    """Writes events. Losing some is said once, on the agent's own stderr."""

    def __init__(self, path: str) -> None:
        self.path = path
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
