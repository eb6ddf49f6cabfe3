"""Live numbers of runs from the evidence so far, for top, the dashboard and the line below the output."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from seatrial import events
from seatrial.common.signals import LINE, is_hooks, rates
from seatrial.diagnosis import Diagnosis
from seatrial.diagnosis.rules import diagnose
from seatrial.errors import SeatrialError
from seatrial.job.units import format_seconds
from seatrial.receipt.logs import read_printed
from seatrial.receipt.printed import Printed
from seatrial.receipt.reported import ReportedSteps
from seatrial.receipt.values import percent, rate
from seatrial.runs.run import Run, run_name
from seatrial.runs.store import RunStore
from seatrial.runs.watch import ensure_recorder
from seatrial.system.files import status_of

#: The end of events.jsonl that is read: a minute of samples of 8 GPUs and a step line each 50 ms is below this.
TAIL_BYTES = 512 * 1024
#: Seconds of the past that the live diagnosis reads.
LOOK_BACK_S = 60.0

_NOT_NUMBERS = frozenset({"t", "step", "epoch", "rank", "images", "flops", "data_s", "communication_s"})
#: Numbers shown of the last step line.
_MAX_NUMBERS = 3
_MAX_NAME = 100
#: The year 2286: a later time is not valid.
_LATEST_S = 1e10
#: Seconds that a rate is the mean of. The hook writes a line a second, or at each step that takes longer.
_WINDOW_S = 10.0
#: A line is valid for so long, or so many times the gap of the last two; then the run evaluates, saves or hangs.
_GOOD_FOR_S, _GOOD_FOR_LINES = 5.0, 3.0
#: Interval between reads of the evidence, and the bytes that its speed is read from.
_READ_EVERY_S, _SPEED_BYTES = 1.0, 64 * 1024
#: Looks at a script that prints without end are this many times the length of the last one apart.
_LOOKS_SHARE = 20


class Live(NamedTuple):
    """The last minute of a run.

    ``numbers``: of the last step line, ``step`` and ``epoch`` first, then the measured rates. ``latest``: the last
    value of each number, reported or printed. ``progress``: ``epoch 46/60, about 12 s left``; "" if no position is
    printed.
    """

    numbers: Mapping[str, float]
    diagnosis: Diagnosis | None
    latest: Mapping[str, float]
    percent: frozenset[str] = frozenset()
    progress: str = ""


def look(run: Run, gpu_name: str = "", metrics: Mapping[str, str] | None = None) -> Live:
    """Read the tail of its events and of its output; ``metrics``: the patterns of ``[metrics]``."""
    read, _ = events.tail(str(run.events_path), TAIL_BYTES)
    samples, steps = list(events.of_type(read, events.Sample)), list(events.of_type(read, events.Step))
    timed = [[event for event in kind if _has_time(event)] for kind in (samples, steps)]
    times = [event["t"] for event in timed[0] or timed[1]]
    # Compare with the last line and not with the latest time: a clock that was set back would hide all later lines.
    recent = [[event for event in kind if abs(event["t"] - times[-1]) <= LOOK_BACK_S] for kind in timed]
    own = [step for step in steps if not is_hooks(step)]
    now = rates(recent[1])
    printed = read_printed(run.folder, metrics or {})
    counted = printed.complement(ReportedSteps(), own=bool(own))
    return Live(
        numbers={**(_numbers(own[-1]) if own else {}), **now},
        diagnosis=diagnose(recent[0], recent[1], gpu_name),
        latest={name: series.points[-1][1] for name, series in counted.items()}
        | {key: value for step in own for key, value in _floats(step).items()},
        percent=frozenset(name for name, series in counted.items() if series.unit),
        progress=progress_words(run, printed, now.get("pass_pct")),
    )


def progress_words(run: Run, printed: Printed, pass_pct: float | None) -> str:
    """Return the position in the whole training, and the time left unless the script prints it; "" if unknown."""
    if (share := printed.progress.share(None if pass_pct is None else pass_pct / 100)) is None:
        return ""
    began, printed_at = run.started_at(), max((path.stat().st_mtime for path in run.folder.glob("std*.log")), default=0)
    if began is None or printed.progress.prints_left or not 0 < share < 1:
        return str(printed.progress)
    left_s = max(0.0, printed_at - began) * (1 - share) / share - (time.time() - printed_at)
    return f"{printed.progress}, about {format_seconds(round(left_s))} left" if left_s >= 1 else str(printed.progress)


def _has_time(event: Mapping[str, Any]) -> bool:
    return event["t"] is not None and 0 <= event["t"] < _LATEST_S


def live_runs(store: RunStore) -> list[dict[str, Any]]:
    """Return the runs of the store that have not ended, newest first, as rows of top.

    No engine is queried: a run counts as live until it is finalised. One whose evidence has not grown for LOOK_BACK_S
    has no numbers, since its agent writes samples all the time. A run that cannot be read is left out.
    """
    rows = []
    for run in reversed(store.all()):
        if run.ended:
            continue
        ensure_recorder(run)
        try:
            plan = run.plan()
            status = status_of(run.events_path)  # the host's own clock has written it
            is_fresh = status is not None and time.time() - status.st_mtime <= LOOK_BACK_S
            now = look(run, plan.gpus[0].name if plan.gpus else "", plan.job.metrics) if is_fresh else None
        except (SeatrialError, OSError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
            continue
        planned = {"id": run.id, "name": run_name(run), "target": plan.shown_target}
        seen = {"progress": now.progress if now else "", "numbers": dict(now.numbers) if now else {}}
        diagnosis = now.diagnosis if now else None
        judged = {"bound_by": diagnosis and diagnosis.cause, "mfu": diagnosis and diagnosis.mfu}
        rows.append({**planned, **seen, **judged})
    return rows


def _floats(step: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in step.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30
        # a name that a terminal, a page and Prometheus can show; those that begin with an underscore are ours
        if key.isprintable() and key.strip() != "" and len(key) <= _MAX_NAME and key[0] != "_"
    }


def _numbers(step: Mapping[str, Any]) -> dict[str, float]:
    numbers = _floats(step)
    others = [key for key in numbers if key not in _NOT_NUMBERS][:_MAX_NUMBERS]
    return {key: numbers[key] for key in ("epoch", "step", *others) if key in numbers}


class Progress:
    """The speed and the progress of a followed run, looked at once a second, and when it has printed."""

    def __init__(self, run: Run) -> None:
        self._run, self._read_s, self._words = run, float("-inf"), ""
        self._printed_bytes, self._cost_s = 0, 0.0

    def words(self) -> str:
        """Return ``1,203 steps, 81.4 steps/s, 5,209 examples/s; epoch 3/10, about 2 min left``; "" without training."""
        now_s, size = time.monotonic(), self._printed_bytes
        with suppress(OSError):
            size = sum(path.stat().st_size for path in self._run.folder.glob("std*.log"))
        pause_s = _READ_EVERY_S if size == self._printed_bytes else min(_READ_EVERY_S, _LOOKS_SHARE * self._cost_s)
        if now_s - self._read_s >= pause_s:
            self._read_s, self._printed_bytes = now_s, size
            with suppress(OSError):  # gone, or not ours to read
                self._words = _speed(self._run)
            self._cost_s = time.monotonic() - now_s
        return self._words


def _speed(run: Run) -> str:
    """Return rates and position, in the whole training or else in the pass over the data, in words."""
    read = [event for event in events.tail(str(run.events_path), _SPEED_BYTES)[0] if _has_time(event)]
    steps = [event for event in read if isinstance(event.get(LINE), Mapping)]
    own = [event for event in steps if not event.get("rank")]
    found: dict[str, float] = {}
    if len(own) > 1:
        last_s, before_s = own[-1]["t"], own[-2]["t"]
        if read[-1]["t"] - last_s <= max(_GOOD_FOR_S, _GOOD_FOR_LINES * (last_s - before_s)):
            pid = own[-1][LINE].get("pid")  # a script may start another, which begins to count anew
            recent = [event for event in own[:-2] if last_s - event["t"] <= _WINDOW_S] + own[-2:]
            found = rates([event for event in recent if event[LINE].get("pid") == pid])
    parts = []
    if "steps_per_s" in found:
        parts += [f"{int(own[-1][LINE]['steps']):,} steps", f"{rate(found['steps_per_s'])} steps/s"]
        parts += [f"{rate(found['examples_per_s'])} examples/s"] if "examples_per_s" in found else []
    position = progress_words(run, read_printed(run.folder, {}), found.get("pass_pct"))
    if not position and "pass_pct" in found:
        left = format_seconds(max(1.0, round(found["pass_left_s"])))
        position = f"{percent(found['pass_pct'])} of this pass, {left} left"
    words = "; ".join(filter(None, (position, ", ".join(parts))))  # a narrow line loses its end
    return f"rank 0: {words}" if words and len(own) < len(steps) else words
