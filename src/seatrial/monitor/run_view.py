"""Render runs for the dashboard: the page of one run, also while it goes on, parts of its logs, and the list."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.backends.base import State
from seatrial.errors import SeatrialError
from seatrial.findings.finding import CAUSE, FIX
from seatrial.job.units import format_seconds
from seatrial.receipt.judge import judge
from seatrial.receipt.logs import Output, read_printed
from seatrial.receipt.model import Receipt, headline, tiles, warnings
from seatrial.receipt.render.pages import LEVELS, STATES
from seatrial.receipt.render.svg import legend
from seatrial.receipt.reported import headline_metrics
from seatrial.receipt.section import Plot
from seatrial.receipt.sections.curves import values_in_window, window_note
from seatrial.receipt.sections.steps import stacked_plot
from seatrial.receipt.values import clean_line, figure, number, rate
from seatrial.runs.live import Live, look
from seatrial.runs.run import Run, Summary, run_name
from seatrial.runs.status import receipt_of, started_at
from seatrial.runs.store import Projects
from seatrial.runs.streams import Stream
from seatrial.system.nofollow import open_regular

#: Position and speed in the last line; other numbers are among the receipt's.
_PROGRESS = (("step", figure), ("epoch", figure), ("steps_per_s", rate), ("examples_per_s", rate))
#: A provisional receipt is valid for this long, or for this many times the time it took: judging reads all evidence.
PROVISIONAL_S, PROVISIONAL_TIMES = 5.0, 10.0
#: Most that is read of a log at once.
MAX_PIECE_BYTES = 256 * 1024


def run_view(run: Run, receipt: Receipt, now: Live) -> dict[str, Any]:
    """Return the run for the dashboard's script, which shows all of it as text."""
    ended = run.ended
    chip = LEVELS[receipt.outcome.level] if ended else STATES["running"]
    bound = receipt.diagnosis.words if receipt.diagnosis else None
    if not ended and now.diagnosis is not None:
        bound = now.diagnosis.words
    measured = receipt.measurements
    stacked = stacked_plot(receipt)  # it is part of the embedded receipt
    seconds = None if (began := started_at(run.id)) is None else round(max(1.0, time.time() - began))
    so_far = "" if seconds is None else f"Started {format_seconds(seconds)} ago. "
    return {
        "id": run.id,
        "name": run_name(run),
        "ended": ended,
        "headline": headline(receipt),
        "chip": {"colour": chip.colour, "words": f"{chip.mark}{receipt.outcome.badge if ended else 'running'}"},
        "words": receipt.outcome.words.partition("; not met: ")[0] if ended else so_far + now.progress,
        "unmet": [
            ": ".join(filter(None, (c.title, c.measured))) + (f", {c.wanted}" if c.expected else "")
            for c in receipt.criteria
            if ended and c.weight == "fail"
        ],
        "traceback": list(receipt.ending.traceback) if receipt.ending else [],
        "failed": receipt.ending is not None,
        "bound_by": bound,
        "warnings": warnings(receipt),
        "found": [] if ended else list(_found(receipt)),
        "tiles": [[row.label, row.value] for row in tiles(receipt)] + ([] if ended else _live_tiles(receipt, now)),
        "plots": [_plot(receipt, plot) for plot in receipt.plots if plot is not stacked],
        "window": [measured.window_start_s, measured.window_s] if measured.window_s is not None else None,
        "shade": window_note(receipt) if any(plot.x == "seconds" for plot in receipt.plots) else "",
    }


def _found(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """Yield the findings and the advice for a live run; an ended one has them in its receipt."""
    for finding in receipt.findings:
        yield finding.severity, finding.message
        yield from ((label, text) for label, text in ((CAUSE, finding.cause), (FIX, finding.fix)) if text)
    for advice in receipt.diagnosis.advice if receipt.diagnosis else ():
        yield FIX, f"{advice.change} ({advice.gain})"


def _live_tiles(receipt: Receipt, now: Live) -> list[list[str]]:
    """Return position and rate now, which the receipt's own tiles do not show."""
    known, numbers = {tile.label for tile in tiles(receipt)}, now.numbers
    labels = [(name, name.replace("_per_s", "/s"), words) for name, words in _PROGRESS]
    return [[label, words(numbers[name])] for name, label, words in labels if name in numbers and label not in known]


def _plot(receipt: Receipt, plot: Plot) -> dict[str, Any]:
    entries = legend(plot, values_in_window(receipt, plot))
    lines = [
        {"name": line.name, "points": line.points, "classes": each.colour, "what": each.what, "value": each.value}
        for line, each in zip(plot.lines, entries, strict=True)
    ]
    return {"title": plot.title, "unit": plot.unit, "x": plot.x, "lines": lines}


class Receipts:
    """Receipts of runs, provisional ones kept for a few seconds. Safe to read from several threads."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[float, Receipt]] = {}  # good until
        self._lock = threading.Lock()

    def of(self, run: Run) -> Receipt:
        """Return the final receipt once the run was finalised. Raises SeatrialError if its plan cannot be read."""
        if run.ended:
            self._made.pop(run.folder, None)
            return receipt_of(run)
        with self._lock:
            kept = self._made.get(run.folder)
            began_s = time.monotonic()
            if kept is not None and began_s < kept[0]:
                return kept[1]
            receipt = provisional(run)
            ended_s = time.monotonic()
            self._made[run.folder] = (ended_s + max(PROVISIONAL_S, PROVISIONAL_TIMES * (ended_s - began_s)), receipt)
            return receipt


def provisional(run: Run) -> Receipt:
    """Judge the run as if it ended now, by the end of its logs; change nothing. Raises SeatrialError without a plan."""
    plan = run.plan()
    evidence, skipped = run.events()
    output, state, now = Output(printed=read_printed(run.folder, plan.job.metrics)), State("running"), time.time()
    receipt = judge(
        plan, evidence, skipped_lines=skipped, state=state, run_dir=run.folder, now=now, image=None, output=output
    )
    judged = tuple(criterion for criterion in receipt.criteria if criterion.id != "clean-output")
    return receipt.changed(criteria=judged)


def read_log(run: Run, stream: Stream, start: int | None, end: int | None) -> dict[str, Any]:
    """Return a piece of a log, from ``start`` on, or up to ``end``, or its end; at most MAX_PIECE_BYTES.

    Keys: ``text`` without control characters, its bytes ``start`` to ``end``, and the ``size`` of the log.
    """
    path = run.folder / f"{stream}.log"
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if start is None:
                stop = size if end is None else min(end, size)
                start = max(0, stop - MAX_PIECE_BYTES)
            else:
                start = min(max(0, start), size)
                stop = min(size, start + MAX_PIECE_BYTES)
            file.seek(start)
            data = file.read(stop - start)
    except FileNotFoundError:
        return {"text": "", "start": 0, "end": 0, "size": 0}
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return {"text": clean_line(text), "start": start, "end": start + len(data), "size": size}


# ------------------------------------------------------------------------------------------------ the list of runs

#: Runs on one page of the list.
PAGE = 50
#: A line of a live run is kept for this long.
_LIVE_S = 1.5
#: Names of the filter → levels of ended runs; live runs are a filter of their own.
STATUSES = ("running", "good", "warning", "bad", "none")
#: Columns that a list can be sorted by, and whether more comes first.
SORTS = {"started": True, "name": False, "target": False, "project": False, "seconds": False, "loss": False,
         "accuracy": True, "status": False}  # fmt: skip

Line = dict[str, Any]


class Listing:
    """Lines of runs; those of ended runs are kept. Safe to read from several threads."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects
        self._lines: dict[Path, tuple[float, Line]] = {}  # each good until
        self._lock = threading.Lock()

    def page(
        self,
        *,
        find: str = "",
        status: str = "",
        project: str = "",
        sort: str = "started",
        backwards: bool = False,
        page: int = 0,
    ) -> dict[str, Any]:
        """Return a page, and the number of runs that match ``find``. Raises ValueError: unknown column or status."""
        for name, value, known_ones in (("sort", sort, SORTS), ("status", status, ("", *STATUSES))):
            if value not in known_ones:
                raise ValueError(f"{name} must be one of {', '.join(filter(None, known_ones))}")
        lines = [self.line(key, run) for key, run in self._projects.runs()]
        fitting = [line for line in lines if _fits(line, find.lower(), status, project)]
        downwards = SORTS[sort] != backwards
        known = [line for line in fitting if line["by"][sort] is not None]
        known.sort(key=lambda line: line["id"], reverse=True)
        known.sort(key=lambda line: line["by"][sort], reverse=downwards)
        every = known + [line for line in fitting if line["by"][sort] is None]
        return {
            "runs": every[page * PAGE : (page + 1) * PAGE],
            "total": len(every),
            "page": page,
            "pages": max(1, -(-len(every) // PAGE)),
            "live": sum(not line["ended"] for line in lines),
            "gpus": any(line["gpus"] for line in fitting),
        }

    def line(self, key: str, run: Run) -> Line:
        """Return the line of a run; an unreadable run is a line as well, and hides no other."""
        with self._lock:
            until_s, kept = self._lines.get(run.folder, (0.0, {}))
        if time.monotonic() < until_s:
            return self._shown(kept)
        try:
            line = _line_of(run)
        except Exception as error:  # noqa: BLE001  a run's files may hold anything
            line = _line(run, Summary(exit_code=0, outcome=f"cannot be read: {type(error).__name__}"), ended=False)
        line["key"] = key
        with self._lock:
            self._lines[run.folder] = (math.inf if line["ended"] else time.monotonic() + _LIVE_S, line)
        return self._shown(line)

    def _shown(self, line: Line) -> Line:
        """Return the line with its age and its project's name now: another of that name may have come."""
        project, began = self._projects.name_of(line["key"]), line["began"]
        age = [] if began is None else format_seconds(max(1, round(time.time() - began))).split()[:2]
        ago = " ".join([*age, "ago"]) if age else ""  # in its largest unit alone: ``3 h ago``
        return {**line, "ago": ago, "project": project, "by": {**line["by"], "project": project}}


def _fits(line: Mapping[str, Any], find: str, status: str, project: str) -> bool:
    text = f"{line['id']} {line['name'] or ''} {line['target']}".lower()
    now = "running" if not line["ended"] else line["level"]
    return find in text and status in ("", now) and project in ("", line["key"])


def _line_of(run: Run) -> Line:
    """Read summary.json or, while the run goes on, its plan and the end of its evidence."""
    if (summary := run.summary()) is not None:
        return _line(run, summary, ended=True)
    try:
        plan = run.plan()
    except SeatrialError as error:
        return _line(run, Summary(exit_code=0, outcome=error.message), ended=False)
    now, begun = look(run, plan.gpus[0].name if plan.gpus else "", plan.job.metrics), started_at(run.id)
    so_far = Summary(
        exit_code=0,
        target=plan.shown_target,
        backend=plan.backend,
        gpus=plan.gpus_asked,
        outcome=now.progress,
        seconds=None if begun is None else max(0.0, time.time() - begun),
        metrics=dict(now.latest),
        percent=tuple(now.percent),
    )
    return _line(run, so_far, ended=False)


def _level(summary: Summary) -> str:
    """Return the level of a summary; older ones have none, so their exit code decides."""
    if summary.level in LEVELS:
        return summary.level
    return "none" if summary.cause == "stopped" else "good" if summary.exit_code == 0 else "bad"


def _line(run: Run, summary: Summary, *, ended: bool) -> Line:
    """Return the line of a run, from its summary or the one that it would have now."""
    last, level = summary.metrics, _level(summary) if ended else "none"
    shown = [(number(last.get(name)), name in summary.percent) for name in headline_metrics(last)]
    words = [None if at is None else figure(float(f"{at:.4g}")) + " %" * share for at, share in shown]
    loss, accuracy = (at if at is None or not share else at / 100 for at, share in shown)
    name, began, seconds = run_name(run), started_at(run.id), summary.seconds
    chip = LEVELS[level] if ended else STATES["running"]
    headline = summary.headline or summary.outcome or "?"
    chip_words, reason = _chip_words(headline, level) if ended else ("running", summary.outcome)
    return {
        "id": run.id,
        "name": name,
        "target": summary.target,
        "backend": summary.backend,
        "gpus": summary.gpus,
        "ended": ended,
        "level": level,
        "chip": {"colour": chip.colour, "words": f"{chip.mark}{chip_words}"},
        "reason": reason,
        "outcome": summary.outcome,
        "began": began,
        "started": "–" if began is None else time.strftime("%d %b %H:%M", time.localtime(began)),
        "time": None if seconds is None else format_seconds(seconds),
        **dict(zip(("loss", "accuracy"), words, strict=True)),
        "by": {
            "started": began,
            "name": (name or run.id).lower(),
            "target": summary.target.lower(),
            "seconds": seconds,
            "loss": loss,
            "accuracy": accuracy,
            "status": STATUSES.index(level) if ended else 0,
        },
    }


#: Words of a chip at most; more stands below it.
_MOST_LETTERS = 30


def _chip_words(headline: str, level: str) -> tuple[str, str]:
    """Return the words of the chip and the words below it: ``failed``, and how."""
    begin, _, rest = headline.partition(": ")
    if begin.startswith("criteria not met"):
        return begin, rest
    if level == "bad":
        return "failed", "" if headline == "failed" else headline
    if headline.lower().startswith("stopped "):
        return "stopped", headline
    return (headline, "") if len(headline) <= _MOST_LETTERS else ("stopped" if level == "none" else level, headline)
