"""End a run: judge it once it has ended, and keep its receipt.

Any process may do this, at any time after the end: the command line that started the run, or a later ``seatrial runs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seatrial.errors import UntrustedPathError
from seatrial.runs.run import Run
from seatrial.system.host import Host

if TYPE_CHECKING:  # what a run with a receipt does not need is imported where it is used
    from seatrial.backends.base import State
    from seatrial.receipt.model import Receipt


def finalise(
    run: Run, host: Host, *, ended: State | None = None, judged: Callable[[Receipt], None] = lambda receipt: None
) -> Receipt | None:
    """Return the receipt of an ended run, made now unless it exists; None while the run lives.

    Args:
        ended: its last state, if the caller has just followed it to its end and collected all of it.
        judged: gets a receipt that is made now as soon as it is written; the container is removed after that.

    Raises:
        EngineUnavailableError: the engine does not answer, so nobody knows whether the run has ended.
    """
    with run.lock("finalise"):
        if run.ended:
            return receipt_of(run)
        from seatrial.runs.ending import end

        return end(run, host, ended=ended, judged=judged)


def receipt_of(run: Run) -> Receipt:
    """Return the receipt of an ended run. Raises SeatrialError: it is none, or not the one that was written."""
    from seatrial.receipt.model import JSON_NAME, MOST_BYTES, load

    receipt, summary = load(run.folder), run.summary()
    if summary is not None and summary.receipt not in (None, run.records.measure(JSON_NAME, max_bytes=MOST_BYTES)[1]):
        changed = f"{run.folder / JSON_NAME} was changed after it was written"
        raise UntrustedPathError(changed, run=f"seatrial runs verify {run.id}")
    return receipt
