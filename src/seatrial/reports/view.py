"""A run as a page shows it: its receipt, or what the receipt would be if the run ended now; and pieces of its logs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from seatrial.backends.base import State
from seatrial.receipt.fields import clean_line
from seatrial.receipt.judge import judge
from seatrial.receipt.logs import Output
from seatrial.receipt.model import Receipt
from seatrial.receipt.store import load
from seatrial.runs.following.output import Stream
from seatrial.runs.run import Run
from seatrial.system.nofollow import open_regular

#: A provisional receipt is good for this long, or for so many times what it took: judging reads all evidence.
PROVISIONAL_S, PROVISIONAL_TIMES = 5.0, 10.0

#: Most that is read of a log at once.
MAX_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Piece:
    """Bytes ``start`` to ``end`` of a log of ``size`` bytes, as text without control characters."""

    text: str
    start: int
    end: int
    size: int


class Receipts:
    """Receipts of runs, provisional ones kept for a few seconds. Safe to ask from several threads."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[float, Receipt]] = {}  # good until
        self._lock = threading.Lock()

    def of(self, run: Run) -> Receipt:
        """Final when the run has ended and was finalised. Raises SeatrialError when its plan cannot be read."""
        if run.ended:
            self._made.pop(run.folder, None)
            return load(run.folder)
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
    """The receipt as of now; changes nothing. Raises SeatrialError when the plan cannot be read.

    The logs are not read, which can take a minute: what they hold is judged once, at the end.
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
        output=Output(),
    )
    judged = tuple(criterion for criterion in receipt.criteria if criterion.id != "clean-output")
    return receipt.model_copy(update={"criteria": judged})


def read_log(run: Run, stream: Stream, start: int | None, end: int | None) -> Piece:
    """A piece of a log: from ``start`` on, or up to ``end``, or its end; at most MAX_PIECE_BYTES."""
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
        return Piece("", 0, 0, 0)
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return Piece(clean_line(text), start, start + len(data), size)
