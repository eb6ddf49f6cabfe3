"""History: the last readings of a few numbers, for the graphs of a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

#: Readings kept: an hour at one a second would be more than any terminal is wide.
LENGTH = 512

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#@"

GPU_KEYS = ("utilization_pct", "sm_activity_pct", "power_w")


class History:
    """(UUID, key) → its last values, oldest first; None where a reading had none."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], deque[float | None]] = {}

    def add(self, reading: Mapping[str, Any]) -> None:
        """Take over one reading."""
        for gpu in reading["gpus"]:
            for key in GPU_KEYS:
                self._series(gpu["uuid"], key).append(gpu.get(key))
        self._series("machine", "cpu_cores").append(reading["machine"]["cpu_cores"])

    def graph(self, uuid: str, key: str, width: int, top: float, *, unicode: bool = True) -> str:
        """The newest ``width`` values as bars of one line, 0 to ``top``; the newest at the right."""
        bars = _BARS if unicode else _ASCII_BARS
        values = list(self._series(uuid, key))[-width:]
        cells = ["·" if unicode and value is None else _bar(value or 0.0, top, bars) for value in values]
        return "".join(cells).rjust(width)

    def _series(self, uuid: str, key: str) -> deque[float | None]:
        return self._values.setdefault((uuid, key), deque(maxlen=LENGTH))


def _bar(value: float, top: float, bars: str) -> str:
    """Something is never drawn as nothing."""
    if value <= 0 or top <= 0:
        return bars[0]
    return bars[max(1, min(len(bars) - 1, round(value / top * (len(bars) - 1))))]
