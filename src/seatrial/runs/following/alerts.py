"""Alerts: what the watchdog has found since the last look, a line each, for whoever follows a run."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial import events
from seatrial.receipt.evidence.fields import clean
from seatrial.runs.store import Run

_FINDING = b'"type":"finding"'


class Alerts:
    """Reads events.jsonl on from where it was left; lines that are no findings cost a search.

    Args:
        from_now: pass over what was found before.
    """

    def __init__(self, run: Run, *, from_now: bool = False) -> None:
        self._path = run.events_path
        self._offset = 0
        if from_now:
            for _ in self._lines():
                pass

    def new(self) -> Iterator[str]:
        """``warning: The run seems to hang (no step … for 300 s)``; control characters are taken out."""
        for line in self._lines():
            event = events.parse(line) if _FINDING in line else None
            if event is not None and event["source"] == "agent":
                seen = next(iter(event.get("evidence") or []), None)
                words = f"{event.get('severity')}: {event.get('message')}" + (f" ({seen})" if seen else "")
                yield clean(words)

    def _lines(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # still being written
                    self._offset += len(line)
                    yield line
        except FileNotFoundError:
            return
