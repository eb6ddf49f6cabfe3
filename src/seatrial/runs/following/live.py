"""What a run does right now, from the end of its events.jsonl: last numbers, last sample, and what bounds it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial import events
from seatrial.common.signals import is_hooks, rates
from seatrial.diagnosis.diagnosis import Diagnosis
from seatrial.diagnosis.rules import diagnose
from seatrial.errors import SeatrialError
from seatrial.runs.following import recorder
from seatrial.runs.run import Run, run_name
from seatrial.runs.store import RunStore

#: The end of events.jsonl that is read: a minute of samples of 8 GPUs and a step line each 50 ms is below this.
TAIL_BYTES = 512 * 1024

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
        numbers: of the last step line, ``step`` and ``epoch`` first, then the rates of the steps that were measured.
        latest: the last value of each number that the target reported; some come with every hundredth line alone.
    """

    numbers: Mapping[str, float]
    diagnosis: Diagnosis | None
    latest: Mapping[str, float]


def look(run: Run, gpu_name: str = "") -> Live:
    """Read the tail of its events; a run that has written none yet has nothing to show."""
    read, _ = events.tail(str(run.events_path), TAIL_BYTES)
    samples, steps = list(events.of_type(read, events.Sample)), list(events.of_type(read, events.Step))
    timed = [[event for event in kind if _has_time(event)] for kind in (samples, steps)]
    times = [event["t"] for event in timed[0] or timed[1]]
    # By the last line and not by the latest time: a clock that was set back would hide all that comes after.
    recent = [[event for event in kind if abs(event["t"] - times[-1]) <= LOOK_BACK_S] for kind in timed]
    own = [step for step in steps if not is_hooks(step)]
    return Live(
        numbers={**(_numbers(own[-1]) if own else {}), **rates(recent[1])},
        diagnosis=diagnose(recent[0], recent[1], gpu_name),
        latest={key: value for step in own for key, value in _floats(step).items()},
    )


def _has_time(event: Mapping[str, Any]) -> bool:
    return event["t"] is not None and 0 <= event["t"] < _LATEST_S


def live_runs(store: RunStore) -> list[dict[str, Any]]:
    """Runs of the store that have not ended, newest first, as telemetry's screen shows them.

    Engines are not asked: a run counts as live until somebody has finalised it. One whose evidence has not grown for
    LOOK_BACK_S has no numbers: its agent writes samples all the time, so what it said last is not what is now. A run
    that cannot be read has none either, and takes nothing from the others.
    """
    rows = []
    for run in reversed(store.all()):
        if run.ended:
            continue
        recorder.ensure(run)
        try:
            plan = run.plan()
            now = look(run, plan.gpus[0].name if plan.gpus else "") if _is_fresh(run) else None
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
    """What a terminal, a page and Prometheus can show. Names that begin with an underscore are ours."""
    return key.isprintable() and key.strip() != "" and len(key) <= _MAX_NAME and key[0] != "_"
