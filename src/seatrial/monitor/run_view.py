"""One run as its page shows it, also while it goes on: its receipt, verdict, tiles, curves, and pieces of its logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seatrial.backends.base import State
from seatrial.findings.finding import CAUSE, FIX
from seatrial.job.units import format_seconds
from seatrial.receipt.fields import clean_line
from seatrial.receipt.formatting import figure, rate
from seatrial.receipt.judge import judge
from seatrial.receipt.logs import Output, read_printed
from seatrial.receipt.model import Receipt
from seatrial.receipt.render.pages import LEVELS, STATES
from seatrial.receipt.render.svg import legend
from seatrial.receipt.section import Plot
from seatrial.receipt.sections.curves import values_in_window, window_note
from seatrial.receipt.sections.steps import stacked_plot
from seatrial.receipt.summary import headline, tiles, warnings
from seatrial.runs.live import Live
from seatrial.runs.run import Run, run_name
from seatrial.runs.status import receipt_of, started_at
from seatrial.runs.streams import Stream
from seatrial.system.nofollow import open_regular

#: Position and speed in the last line; other numbers are among the receipt's.
_PROGRESS = (("step", figure), ("epoch", figure), ("steps_per_s", rate), ("examples_per_s", rate))


def run_view(run: Run, receipt: Receipt, now: Live) -> dict[str, Any]:
    """Return the run for the dashboard's script, which shows all of it as text."""
    ended = run.ended
    chip = LEVELS[receipt.outcome.level] if ended else STATES["running"]
    bound = receipt.diagnosis.words if receipt.diagnosis else None
    if not ended and now.diagnosis is not None:
        bound = now.diagnosis.words
    measured = receipt.measurements
    stacked = stacked_plot(receipt)  # it is part of the embedded receipt
    return {
        "id": run.id,
        "name": run_name(run),
        "ended": ended,
        "headline": headline(receipt),
        "chip": {"colour": chip.colour, "words": f"{chip.mark}{receipt.outcome.badge if ended else 'running'}"},
        "words": receipt.outcome.words.partition("; not met: ")[0] if ended else _so_far(run) + now.progress,
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


def _so_far(run: Run) -> str:
    began = started_at(run.id)
    return "" if began is None else f"Started {format_seconds(round(max(1.0, time.time() - began)))} ago. "


def _live_tiles(receipt: Receipt, now: Live) -> list[list[str]]:
    """Return position and rate now, which the receipt's own tiles do not show."""
    known = {tile.label for tile in tiles(receipt)}
    labels = [(name, name.replace("_per_s", "/s"), words) for name, words in _PROGRESS]
    return [
        [label, words(now.numbers[name])] for name, label, words in labels if name in now.numbers and label not in known
    ]


def _plot(receipt: Receipt, plot: Plot) -> dict[str, Any]:
    entries = legend(plot, values_in_window(receipt, plot))
    return {
        "title": plot.title,
        "unit": plot.unit,
        "x": plot.x,
        "lines": [
            {"name": line.name, "points": line.points, "classes": each.colour, "what": each.what, "value": each.value}
            for line, each in zip(plot.lines, entries, strict=True)
        ],
    }


#: A provisional receipt is valid for this long, or for this many times the time it took: judging reads all evidence.
PROVISIONAL_S, PROVISIONAL_TIMES = 5.0, 10.0

#: Most that is read of a log at once.
MAX_PIECE_BYTES = 256 * 1024


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
            good_for_s = max(PROVISIONAL_S, PROVISIONAL_TIMES * (ended_s - began_s))
            self._made[run.folder] = (ended_s + good_for_s, receipt)
            return receipt


def provisional(run: Run) -> Receipt:
    """Judge the run as if it ended now; changes nothing. Raises SeatrialError when the plan cannot be read.

    Of the logs only the end is read, for its metrics: all of them can take a minute, and are judged once, at the end.
    """
    plan = run.plan()
    evidence, skipped = run.events()
    receipt = judge(
        plan,
        evidence,
        skipped_lines=skipped,
        state=State("running"),
        run_dir=run.folder,
        now=time.time(),
        image=None,
        output=Output(printed=read_printed(run.folder, plan.job.metrics)),
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
