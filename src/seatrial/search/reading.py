"""What a running trial reports: the objective's values, from its events or from a pattern on its output."""

from __future__ import annotations

import math
import re

from seatrial import events
from seatrial.events import Step
from seatrial.receipt.fields import number, text
from seatrial.receipt.reported import PHASES
from seatrial.runs.following.output import Stream
from seatrial.runs.run import Run
from seatrial.search.objective import Objective

#: Read at once: a script may report without end.
_MOST_BYTES = 4 << 20

#: Of a line of output that has not ended; a longer one is no line with a metric.
_MOST_LINE_BYTES = 64 * 1024

_LINE_END = re.compile(rb"[\r\n]")

#: What belongs to a number and is easily left out of a pattern: ``([\d.]+)`` on ``1.2e-05`` is not 1.2.
_EXPONENT = re.compile(r"[eE][+-]?\d+")


class Reading:
    """The values of one trial as they come.

    Args:
        series: the objective's full name among what scripts report, where an earlier trial has shown it.

    Attributes:
        last_printed: with a pattern, the last finite value.
        diverged: the objective's last value is NaN or infinite.
        told: full name among what scripts report → how many values came.
    """

    def __init__(self, run: Run, objective: Objective, series: str | None) -> None:
        self._pattern = re.compile(objective.pattern) if objective.pattern is not None else None
        self._lines = events.Lines(str(run.events_path))
        names = [phase + objective.metric for phase in PHASES if phase != "train_"]
        self._names = [series] if series is not None else names
        self.told = dict.fromkeys(self._names, 0)
        self._unfinished: dict[Stream, bytes] = {}
        self._printed: list[float] = []
        self.last_printed: float | None = None
        self.diverged = False
        self.count = 0

    @property
    def series(self) -> str | None:
        """The name that came most often, by PHASES of equals; None: none came more than once."""
        most = max(self.told, key=lambda name: self.told[name])
        return most if self.told[most] > 1 else None

    def output(self, stream: Stream, data: bytes) -> None:
        """More of the output."""
        if self._pattern is None:
            return
        *whole, rest = _LINE_END.split(self._unfinished.get(stream, b"") + data)
        self._unfinished[stream] = rest[:_MOST_LINE_BYTES]
        for line in whole:
            self._match(line)

    def finish(self) -> None:
        """Nothing more is printed."""
        for rest in self._unfinished.values():
            self._match(rest)
        self._unfinished.clear()

    def new(self) -> list[tuple[int, float]]:
        """(1, 2, 3 …, value) of those that have come since the last call. What is no finite number does not count."""
        values, self._printed = self._printed, []
        if self._pattern is None:
            values = self._reported()
        first = self.count + 1
        self.count += len(values)
        return list(enumerate(values, first))

    def _match(self, line: bytes) -> None:
        assert self._pattern is not None
        for match in self._pattern.finditer(line.decode("utf-8", "replace")):
            value = _printed_number(match)
            if value is None:
                continue
            self.diverged = not math.isfinite(value)
            if not self.diverged:
                self._printed.append(value)
                self.last_printed = value

    def _reported(self) -> list[float]:
        found: list[float] = []
        mark = events.mark(Step)
        try:
            for line in self._lines.new(_MOST_BYTES):
                event = events.parse(line) if mark in line else None
                if event is None or number(event.get("rank")):
                    continue
                value = self._of(event)
                found += [value] if value is not None else []
        except OSError:  # gone, or not ours to read; the receipt has the last value
            pass
        return found

    def _of(self, event: dict[str, object]) -> float | None:
        """The objective of one line. The first name that was seen is the one from then on."""
        phase = text(event.get("phase")) or ""
        values = [(key if not phase or key.startswith(phase + "_") else f"{phase}_{key}", event[key]) for key in event]
        for name in {name for name, told in values if name in self.told and number(told) is not None}:
            self.told[name] += 1
        for name, told in values:
            if name not in self._names:
                continue
            value = number(told)
            if value is None:
                self.diverged = self.diverged or told is None or isinstance(told, float)  # events have null for NaN
                continue
            self.diverged = False
            self._names = self._names[: self._names.index(name) + 1] if name != self._names[0] else [name]
            return value
        return None


def _printed_number(match: re.Match[str]) -> float | None:
    """The first group as a number, with its exponent, and without the full stop or percent sign behind it."""
    told = (match[1] or "").strip().rstrip("%.,;)")
    exponent = _EXPONENT.match(match.string, match.end(1)) if told[-1:].isdigit() else None
    try:
        return float(told + (exponent[0] if exponent is not None else ""))
    except ValueError:
        return None
