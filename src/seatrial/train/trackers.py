"""Where the numbers of a training go: the console, seatrial's events, TensorBoard, MLflow; several at once.

A tracker gets one flat dictionary a time: ``step`` (global), ``epoch``, ``phase`` and any numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from seatrial.events import EVENTS_VARIABLE, EventLog

Values = Mapping[str, float | int | str]


class Tracker(Protocol):
    """Something that keeps numbers."""

    def log(self, values: Values) -> None:
        """Take one set of numbers."""

    def close(self) -> None:
        """Write out what is still held."""


class EventsTracker:
    """Appends ``step`` lines to $SEATRIAL_EVENTS (schema: seatrial.events); receipts plot them."""

    def __init__(self, path: str) -> None:
        self._log = EventLog(path, "target")

    def log(self, values: Values) -> None:
        self._log.write("step", **values)

    def close(self) -> None:
        self._log.close()


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def log(self, values: Values) -> None:
        for tracker in self._trackers:
            tracker.log(values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def open_trackers() -> Trackers:
    """The events file, when $SEATRIAL_EVENTS names one."""
    path = os.environ.get(EVENTS_VARIABLE)
    return Trackers([EventsTracker(path)] if path else [])
