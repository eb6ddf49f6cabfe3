"""How fast a run trains right now, in one line: from the lines of the hook beside its Python, as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from seatrial import events
from seatrial.common.signals import LINE, rates
from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import percent, rate
from seatrial.runs.run import Run

#: Seconds that a rate is the mean of. The hook writes a line a second, or at each step that takes longer.
_WINDOW_S = 10.0

#: A line is good for so long, or for so many times what lay between the last two: then the run evaluates, saves or
#: hangs, and no rate of before is that of now.
_GOOD_FOR_S, _GOOD_FOR_LINES = 5.0, 3.0

_READ_EVERY_S = 1.0

#: Of evidence that is there already when somebody begins to look.
_FIRST_BYTES = 64 * 1024

#: Read at once, and kept: a target may write lines without end.
_MOST_BYTES, _MOST_LINES = 1 << 20, 1000


class Progress:
    """Reads what is new in a run's evidence, at most once a second.

    Args:
        run: one that is being followed.
    """

    def __init__(self, run: Run) -> None:
        self._lines = events.Lines(str(run.events_path))
        self._lines.skip_to_last(_FIRST_BYTES)
        self._recent: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=_MOST_LINES)
        self._other_ranks = False
        self._read_s = float("-inf")
        self._words = ""

    def words(self) -> str:
        """``1,203 steps, 81.4 steps/s, 5,209 examples/s; 43 % of this pass, 12 s left``; "" while nothing trains."""
        now_s = time.monotonic()
        if now_s - self._read_s < _READ_EVERY_S:
            return self._words
        self._read_s = now_s
        self._read(now_s)
        words = _words([line for _, line in self._recent]) if self._is_fresh(now_s) else ""
        self._words = f"rank 0: {words}" if words and self._other_ranks else words
        return self._words

    def _is_fresh(self, now_s: float) -> bool:
        if len(self._recent) < 2:
            return False
        (before_s, _), (last_s, _) = self._recent[-2], self._recent[-1]
        return now_s - last_s <= max(_GOOD_FOR_S, _GOOD_FOR_LINES * (last_s - before_s))

    def _read(self, now_s: float) -> None:
        step = events.mark(events.Step)
        try:
            for line in self._lines.new(_MOST_BYTES):
                if step not in line or LINE.encode() not in line:
                    continue
                event = events.parse(line)
                if event is None or not isinstance(event.get(LINE), Mapping):
                    continue
                if event.get("rank"):
                    self._other_ranks = True
                else:
                    self._recent.append((now_s, event))
        except OSError:  # gone, or not ours to read: there is nothing to show
            return
        while len(self._recent) > 2 and now_s - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()


def _words(lines: list[Mapping[str, Any]]) -> str:
    process = lines[-1][LINE].get("pid")  # a script may start another, which begins to count anew
    found = rates([line for line in lines if line[LINE].get("pid") == process])
    if "steps_per_s" not in found:
        return ""
    steps = lines[-1][LINE].get("steps")
    told = [f"{steps:,} steps"] if isinstance(steps, int) and 0 < steps < 1e15 else []
    told += [f"{rate(found['steps_per_s'])} steps/s"]
    told += [f"{rate(found['examples_per_s'])} examples/s"] if "examples_per_s" in found else []
    if "pass_pct" not in found:
        return ", ".join(told)
    left = format_seconds(max(1.0, round(found["pass_left_s"])))
    return f"{', '.join(told)}; {percent(found['pass_pct'])} of this pass, {left} left"
