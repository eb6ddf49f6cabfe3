"""Read the numbers that trials report, how trials end, and what several of them show about the script."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress

from seatrial import events
from seatrial.errors import SeatrialError, TrialsFailError, UsageError
from seatrial.events import Step
from seatrial.receipt.model import Receipt
from seatrial.receipt.printed import Printed
from seatrial.receipt.reported import PHASES
from seatrial.receipt.sections.measured import direction
from seatrial.receipt.values import number, text
from seatrial.runs.run import Run
from seatrial.runs.streams import Stream
from seatrial.search.request import Objective
from seatrial.search.trial import Ending, State, Trial
from seatrial.system.text import nearest

#: Bytes that are read at once: a script may report without end.
_MOST_BYTES = 4 << 20
#: Bytes that are kept of an unfinished line of output; a longer one has no metric.
_MOST_LINE_BYTES = 64 * 1024

_LINE_END = re.compile(rb"[\r\n]")
#: Consecutive failures before any success after which the search gives up.
MOST_FAILURES = 5
#: Trials with other settings and the same numbers before the search takes it that the script ignores them.
MOST_EQUAL = 5
#: Numbers of a script that differ between equal trainings.
_OF_TIME = ("_s", "_ms", "per_s", "per_second", "seconds", "time", "epoch_time", "elapsed", "memory")


class Reading:
    """Reads the values of one trial as they come; ``counts``: full name → how many values came.

    ``series``: the objective's full name among what scripts report, where an earlier trial has shown it.
    ``last_printed``: with a pattern, the last finite value. ``diverged``: the objective's last value is NaN or
    infinite.
    """

    def __init__(self, run: Run, objective: Objective, series: str | None) -> None:
        self._output = Printed({objective.metric: objective.pattern}) if objective.pattern is not None else None
        self._lines = events.Lines(str(run.events_path))
        names = [phase + objective.metric for phase in PHASES if phase != "train_"]
        self._names = [series] if series is not None else names
        self.counts = dict.fromkeys(self._names, 0)
        self._unfinished: dict[Stream, bytes] = {}
        self._printed: list[float] = []
        self.last_printed: float | None = None
        self.diverged = False
        self.count = 0

    @property
    def series(self) -> str | None:
        """Return the name that came most often, by PHASES of equals; None if none came more than once."""
        most = max(self.counts, key=lambda name: self.counts[name])
        return most if self.counts[most] > 1 else None

    def output(self, stream: Stream, data: bytes) -> None:
        """Take more of the script's output."""
        if self._output is None:
            return
        *whole, rest = _LINE_END.split(self._unfinished.get(stream, b"") + data)
        self._unfinished[stream] = rest[:_MOST_LINE_BYTES]
        for line in whole:
            self._match(line)

    def finish(self) -> None:
        """Take the unfinished lines as they are, since nothing more is printed."""
        for rest in self._unfinished.values():
            self._match(rest)
        self._unfinished.clear()

    def new(self) -> list[tuple[int, float]]:
        """Return (number, value) of each value since the last call, counted from 1; NaN and infinity are left out."""
        values, self._printed = self._printed, []
        if self._output is None:
            values = self._reported()
        first = self.count + 1
        self.count += len(values)
        return list(enumerate(values, first))

    def _match(self, line: bytes) -> None:
        assert self._output is not None
        for name, value, _ in self._output.add(line):
            if name not in self._output.patterns:
                continue
            self.diverged = not math.isfinite(value)
            if not self.diverged:
                self._printed.append(value)
                self.last_printed = value

    def _reported(self) -> list[float]:
        found: list[float] = []
        mark = events.mark(Step)
        with suppress(OSError):  # gone, or not ours to read; the receipt has the last value
            for line in self._lines.new(_MOST_BYTES):
                event = events.parse(line) if mark in line else None
                if event is None or number(event.get("rank")):
                    continue
                value = self._of(event)
                found += [value] if value is not None else []
        return found

    def _of(self, event: dict[str, object]) -> float | None:
        """Return the objective of one line, or None. A name that was seen excludes those behind it from then on."""
        phase = text(event.get("phase")) or ""
        values = [(key if not phase or key.startswith(phase + "_") else f"{phase}_{key}", event[key]) for key in event]
        for name in {name for name, raw in values if name in self.counts and number(raw) is not None}:
            self.counts[name] += 1
        for name, raw in values:
            if name not in self._names:
                continue
            value = number(raw)
            if value is None:
                self.diverged = self.diverged or raw is None or isinstance(raw, float)  # events have null for NaN
                continue
            self.diverged = False
            self._names = self._names[: self._names.index(name) + 1] if name != self._names[0] else [name]
            return value
        return None


def ending_of(
    receipt: Receipt,
    objective: Objective | None,
    printed: float | None = None,
    *,
    diverged: bool = False,
    series: str | None = None,
) -> Ending:
    """Return how a trial ended; ``printed``: the pattern's last value; ``diverged``: not finite, so none counts."""
    measured = receipt.measurements
    used = [gpu.utilization_mean_pct for gpu in measured.gpus if gpu.utilization_mean_pct is not None]
    cores, wall_s = measured.cpu_cores_mean, measured.wall_s
    facts = {
        "seconds": wall_s,
        "images_per_s": measured.images_per_s,
        "energy_j": measured.energy_j,
        "utilization_pct": sum(used) / len(used) if used else None,
        "cpu_s": cores * wall_s if cores is not None and wall_s is not None else None,
    }
    last = {metric.name: float(metric.ended_as or metric.last) for metric in measured.metrics}
    metrics = {name: number for name, number in last.items() if math.isfinite(number)}
    value = None
    if objective is not None:
        named = (last[phase + objective.metric] for phase in PHASES if phase + objective.metric in last)
        value = printed if objective.pattern is not None else next(named, None)
        diverged = diverged or not math.isfinite(value or 0.0)
    state, outcome = _state(receipt), receipt.outcome.brief
    if objective is not None and diverged and state == "done":
        state, value, outcome = "failed", None, f"diverged: its last {objective.metric} is not finite"
    known = {key: number for key, number in facts.items() if number is not None}
    names = [metric.name for metric in measured.metrics if metric.source]
    percent = [metric.name for metric in measured.metrics if metric.unit == "%"]
    code = receipt.exit_code
    return Ending(state, value, outcome, code, known, metrics, series=series, printed=names, percent=percent)


def series_of(objective: Objective, ending: Ending) -> str | None:
    """Return the full name under which scripts report the objective, as an ended trial shows it, or None.

    What came several times while it ran, else what it reported at all: a pruner has no use for a last evaluation.
    """
    names = (phase + objective.metric for phase in PHASES)
    return ending.series or next((name for name in names if name in ending.metrics), None)


def _state(receipt: Receipt) -> State:
    cause = receipt.exit_cause.id
    if cause in ("pruned", "stopped"):
        return "pruned" if cause == "pruned" else "stopped"
    return "done" if cause == "finished" and receipt.exit_cause.target_exit_code == 0 else "failed"


def unreported(objective: Objective, trial: Trial, last_line: str = "") -> UsageError:
    """Return the error of a search whose trials end well and never report the objective."""
    reported = trial.ending.metrics if trial.ending else {}
    words = f"trial {trial.number} (run {trial.run_id})"
    if objective.pattern is not None:
        problem = f"--metric-from '{objective.pattern}' matched no number in the output of {words}"
        cause = f"its last line was: {last_line}" if last_line else "it printed nothing"
        return UsageError(problem, cause=cause, run=f"seatrial runs logs {trial.run_id}")
    if reported:
        names = ", ".join(sorted(reported)[:12])
        alike = [name for name in reported if objective.metric in name or name in objective.metric]
        same = [name for name in reported if direction(name) == direction(objective.metric)] or list(reported)
        better = (alike or [nearest(objective.metric, same) or min(same)])[0]
        good = {1: "max", -1: "min"}.get(direction(better), objective.direction)
        run = f"seatrial sweep … --metric {better}:{good}"
        return UsageError(f"No trial reports {objective.metric}: {words} reported {names}", run=run)
    cause = "a script reports by lines of JSON in the file that $SEATRIAL_EVENTS names, or prints its numbers"
    finds = rf"seatrial sweep … --metric-from '{objective.metric}[:=\s]+([\d.e+-]+)'"
    run = f"{finds}   # what it prints: seatrial runs logs {trial.run_id}"
    return UsageError(f"No trial reports {objective.metric}: {words} reported no metric at all", cause=cause, run=run)


def problem_of(trials: Sequence[Trial]) -> SeatrialError | None:
    """Return what the ended trials show to be wrong with all of them."""
    failed = [trial for trial in trials if trial.state == "failed"]
    if len(failed) >= MOST_FAILURES and not any(trial.state in ("done", "pruned") for trial in trials):
        last = max(failed, key=lambda trial: trial.ended_at or 0.0)
        outcome = last.ending.outcome if last.ending else "for no recorded reason"
        show = f"seatrial runs show {last.run_id}" if last.run_id else "seatrial runs ls"
        return TrialsFailError(f"{len(failed)} trials failed and none ended well; the last: {outcome}", run=show)
    done = [trial for trial in trials if trial.state == "done" and _numbers(trial)]
    if len(done) < MOST_EQUAL or len({_numbers(trial) for trial in done}) > 1:
        return None
    if len(done[0].reports) == 1 and not (done[0].ending and done[0].ending.metrics):
        return None  # one printed number of few digits may well be the same
    one = len(done[0].settings) == 1
    names = f"The setting{'' if one else 's'} {' and '.join(done[0].settings)} make{'s' if one else ''} no difference"
    cause = "the script reads the setting and does not use it, or overwrites it"
    run = f"seatrial runs compare {done[0].run_id} {done[-1].run_id}"
    return UsageError(f"{names}: {len(done)} trials reported exactly the same numbers", cause=cause, run=run)


def _numbers(trial: Trial) -> tuple[object, ...]:
    ending = trial.ending or Ending(trial.state)  # printed numbers of few digits may well be the same
    names = [name for name in sorted(ending.metrics) if name not in ending.printed and not name.endswith(_OF_TIME)]
    kept = tuple((name, ending.metrics[name]) for name in names)
    return (*kept, *((report.step, report.value) for report in trial.reports))
