"""Live numbers of runs from the evidence so far, for top, the dashboard and the line below the output."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial import events
from seatrial.common.signals import LINE, is_hooks, rates
from seatrial.diagnosis.diagnosis import Diagnosis
from seatrial.diagnosis.rules import diagnose
from seatrial.errors import SeatrialError
from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import percent, rate
from seatrial.receipt.logs import read_printed
from seatrial.receipt.printed import Printed
from seatrial.runs.following.watch import ensure_recorder
from seatrial.runs.run import Run, run_name
from seatrial.runs.store import RunStore

#: The end of events.jsonl that is read: a minute of samples of 8 GPUs and a step line each 50 ms is below this.
TAIL_BYTES = 512 * 1024

#: The end of each log that is read for metrics and progress.
OUTPUT_BYTES = 16 * 1024

#: Seconds that the live diagnosis looks back.
LOOK_BACK_S = 60.0

_NOT_NUMBERS = frozenset({"t", "step", "epoch", "rank", "images", "flops", "data_s", "communication_s"})
#: Numbers shown of the last step line.
_MAX_NUMBERS = 3
_MAX_NAME = 100

#: The year 2286: a time beyond it is none.
_LATEST_S = 1e10


@dataclass(frozen=True)
class Live:
    """The last minute of a run.

    Attributes:
        numbers: of the last step line, ``step`` and ``epoch`` first, then the measured rates.
        latest: the last value of each number that the target reported, or printed. percent: names of those in percent.
        progress: ``epoch 46/60, about 12 s left``; "" if the target prints no position.
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
    # By the last line and not by the latest time: a clock that was set back would hide all later lines.
    recent = [[event for event in kind if abs(event["t"] - times[-1]) <= LOOK_BACK_S] for kind in timed]
    own = [step for step in steps if not is_hooks(step)]
    now = rates(recent[1])
    printed = read_printed(run.folder, metrics or {}, OUTPUT_BYTES)
    counted = {
        name: each for name, each in printed.series.items() if each.points and (not own or name in printed.patterns)
    }
    return Live(
        numbers={**(_numbers(own[-1]) if own else {}), **now},
        diagnosis=diagnose(recent[0], recent[1], gpu_name),
        latest={name: series.points[-1][1] for name, series in counted.items()}
        | {key: value for step in own for key, value in _floats(step).items()},
        percent=frozenset(name for name, series in counted.items() if series.unit),
        progress=progress_words(run, printed, now.get("pass_pct")),
    )


def progress_words(run: Run, printed: Printed, pass_pct: float | None) -> str:
    """Return the position in the whole training, and the time left by the mean since the target's start."""
    share = printed.progress.share(None if pass_pct is None else pass_pct / 100)
    if share is None:
        return ""
    began, printed_at = run.started_at(), max((path.stat().st_mtime for path in run.folder.glob("std*.log")), default=0)
    if began is None or not 0 < share < 1:
        return str(printed.progress)
    left_s = max(0.0, printed_at - began) * (1 - share) / share - (time.time() - printed_at)
    return f"{printed.progress}, about {format_seconds(max(1.0, round(left_s)))} left"


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
            now = look(run, plan.gpus[0].name if plan.gpus else "", plan.job.metrics) if _is_fresh(run) else None
        except (SeatrialError, OSError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
            continue
        diagnosis = now.diagnosis if now else None
        rows.append(
            {
                "id": run.id,
                "name": run_name(run),
                "target": plan.job.target.value or plan.job.image.ready or "",
                "numbers": dict(now.numbers) if now else {},
                "bound_by": diagnosis.cause if diagnosis else None,
                "mfu": diagnosis.mfu if diagnosis else None,
            }
        )
    return rows


def _is_fresh(run: Run) -> bool:
    """By the host's own clock, which is the one that wrote the file."""
    try:
        return time.time() - run.events_path.lstat().st_mtime <= LOOK_BACK_S
    except OSError:
        return False


def _floats(step: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in step.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30 and _is_a_name(key)
    }


def _numbers(step: Mapping[str, Any]) -> dict[str, float]:
    numbers = _floats(step)
    position: dict[str, float] = {key: numbers[key] for key in ("epoch", "step") if key in numbers}
    others = [key for key in numbers if key not in _NOT_NUMBERS][:_MAX_NUMBERS]
    return {**position, **{key: numbers[key] for key in others}}


def _is_a_name(key: str) -> bool:
    """Return whether a terminal, a page and Prometheus can show it. Names that begin with an underscore are ours."""
    return key.isprintable() and key.strip() != "" and len(key) <= _MAX_NAME and key[0] != "_"


#: Seconds that a rate is the mean of. The hook writes a line a second, or at each step that takes longer.
_WINDOW_S = 10.0

#: A line is valid for so long, or for so many times the distance of the last two; then the run evaluates, saves or
#: hangs.
_GOOD_FOR_S, _GOOD_FOR_LINES = 5.0, 3.0

_READ_EVERY_S = 1.0

#: Of evidence that exists when the reading begins.
_FIRST_BYTES = 64 * 1024

#: Read at once, and kept: a target may write lines without end.
_MOST_BYTES, _MOST_LINES = 1 << 20, 1000


class Progress:
    """Reads the new evidence of a followed run, at most once a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines = events.Lines(str(run.events_path))
        self._lines.skip_to_last(_FIRST_BYTES)
        self._recent: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=_MOST_LINES)
        self._other_ranks = False
        self._read_s = float("-inf")
        self._words = ""

    def words(self) -> str:
        """``1,203 steps, 81.4 steps/s, 5,209 examples/s; epoch 3/10, about 2 min left``; "" while nothing trains.

        Where the target prints no position in the whole training, that in the pass over its data.
        """
        now_s = time.monotonic()
        if now_s - self._read_s < _READ_EVERY_S:
            return self._words
        self._read_s = now_s
        self._read(now_s)
        lines = [line for _, line in self._recent] if self._is_fresh(now_s) else []
        words, of_pass, pass_pct = _words(lines) if lines else ("", "", None)
        printed = read_printed(self._run.folder, {}, OUTPUT_BYTES)
        words = "; ".join(filter(None, (words, progress_words(self._run, printed, pass_pct) or of_pass)))
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
        except OSError:  # gone, or not ours to read
            return
        while len(self._recent) > 2 and now_s - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()


def _words(lines: list[Mapping[str, Any]]) -> tuple[str, str, float | None]:
    """Return the rates in words, the position in the pass in words, and in percent."""
    process = lines[-1][LINE].get("pid")  # a script may start another, which begins to count anew
    found = rates([line for line in lines if line[LINE].get("pid") == process])
    if "steps_per_s" not in found:
        return "", "", None
    steps = lines[-1][LINE].get("steps")
    parts = [f"{steps:,} steps"] if isinstance(steps, int) and 0 < steps < 1e15 else []
    parts += [f"{rate(found['steps_per_s'])} steps/s"]
    parts += [f"{rate(found['examples_per_s'])} examples/s"] if "examples_per_s" in found else []
    if "pass_pct" not in found:
        return ", ".join(parts), "", None
    left = format_seconds(max(1.0, round(found["pass_left_s"])))
    return ", ".join(parts), f"{percent(found['pass_pct'])} of this pass, {left} left", found["pass_pct"]
