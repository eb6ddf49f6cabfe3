"""Alerts: what the watchdog has found since the last look, a line each, for whoever follows a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from seatrial import events
from seatrial.receipt.fields import clean
from seatrial.runs.run import Run

_FINDING = events.mark(events.Found)


class Alerts:
    """Reads events.jsonl on from where it was left; lines that are no findings cost a search.

    Args:
        from_now: pass over what was found before.
    """

    def __init__(self, run: Run, *, from_now: bool = False) -> None:
        self._lines = events.Lines(str(run.events_path))
        if from_now:
            deque(self._lines.new(), maxlen=0)

    def new(self) -> Iterator[str]:
        """``warning: The run seems to hang (no step … for 300 s)``; control characters are taken out."""
        for line in self._lines.new():
            event = events.parse(line) if _FINDING in line else None
            if event is not None and event["source"] == "agent":
                seen = next(iter(event.get("evidence") or []), None)
                words = f"{event.get('severity')}: {event.get('message')}" + (f" ({seen})" if seen else "")
                yield clean(words)
