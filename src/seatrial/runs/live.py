"""What a run does right now, from the end of its events.jsonl: last numbers, last sample, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial import events
from seatrial.diagnosis.diagnosis import Diagnosis
from seatrial.diagnosis.rules import diagnose
from seatrial.errors import SeatrialError
from seatrial.runs import recorder
from seatrial.runs.store import Run, RunStore, run_name

#: The end of events.jsonl that is read: a minute of samples of 8 GPUs and a step line each 50 ms is below this.
TAIL_BYTES = 512 * 1024

#: Seconds that the live diagnosis looks back.
LOOK_BACK_S = 60.0

_NOT_NUMBERS = frozenset({"t", "step", "epoch", "rank", "images", "flops", "data_s", "communication_s"})
#: Numbers shown of the last step line.
_MAX_NUMBERS = 3


@dataclass(frozen=True)
class Live:
    """The last minute of a run. ``numbers`` are of the last step line, ``step`` and ``epoch`` first."""

    numbers: Mapping[str, float]
    sample: Mapping[str, Any] | None
    diagnosis: Diagnosis | None
    last_finding: str | None
    skipped_lines: int


def look(run: Run, gpu_name: str = "") -> Live:
    """Read the tail of its events; a run that has written none yet has nothing to show."""
    read, skipped = tail(run.events_path)
    samples, steps = list(events.of_type(read, "sample")), list(events.of_type(read, "step"))
    times = [event["t"] for event in samples or steps if event["t"] is not None]
    # By the last line and not by the latest time: a clock that was set back would hide all that comes after.
    recent = [
        [event for event in kind if event["t"] is not None and abs(event["t"] - times[-1]) <= LOOK_BACK_S]
        for kind in (samples, steps)
    ]
    findings = list(events.of_type(read, "finding"))
    return Live(
        numbers=_numbers(steps[-1]) if steps else {},
        sample=samples[-1] if samples else None,
        diagnosis=diagnose(recent[0], recent[1], gpu_name),
        last_finding=str(findings[-1].get("message")) if findings else None,
        skipped_lines=skipped,
    )


def tail(path: Path, size: int = TAIL_BYTES) -> tuple[list[dict[str, Any]], int]:
    """(events of the file's last bytes, lines that were none). The line cut in two at the beginning is no loss."""
    try:
        offset = max(0, path.stat().st_size - size)
        if offset:
            with path.open("rb") as file:
                file.seek(offset)
                file.readline()
                offset = file.tell()
    except FileNotFoundError:
        return [], 0
    read, _, skipped = events.read(str(path), offset)
    return read, skipped


def live_runs(store: RunStore) -> list[dict[str, Any]]:
    """Runs of the store that have not ended, newest first, as telemetry's screen shows them.

    Engines are not asked: a run counts as live until somebody has finalised it.
    """
    rows = []
    for run in reversed(store.all()):
        if run.ended:
            continue
        recorder.ensure(run)
        try:
            plan = run.plan()
        except SeatrialError:
            continue
        now = look(run, plan.gpus[0].name if plan.gpus else "")
        rows.append(
            {
                "id": run.id,
                "name": run_name(run),
                "target": plan.job.target.value or plan.job.image.ready or "",
                "numbers": dict(now.numbers),
                "bound_by": now.diagnosis.cause if now.diagnosis else None,
                "mfu": now.diagnosis.mfu if now.diagnosis else None,
            }
        )
    return rows


def _numbers(step: Mapping[str, Any]) -> dict[str, float]:
    numbers = {
        key: float(value)
        for key, value in step.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30 and key[:1] != "_"
    }
    position: dict[str, float] = {key: numbers[key] for key in ("epoch", "step") if key in numbers}
    others = [key for key in numbers if key not in _NOT_NUMBERS][:_MAX_NUMBERS]
    return {**position, **{key: numbers[key] for key in others}}
