"""The receipt of a run: read where it has one; else its end is judged (ending.py), if it has ended.

Any process may do this, at any time after the end: the CLI that started the run, or a later ``seatrial runs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seatrial.receipt.model import Receipt
from seatrial.receipt.store import load
from seatrial.runs.run import Run
from seatrial.system.host import Host

if TYPE_CHECKING:
    from seatrial.backends.base import State


def finalise(
    run: Run,
    host: Host,
    *,
    ended: State | None = None,
    judged: Callable[[Receipt], None] = lambda receipt: None,
) -> Receipt | None:
    """The receipt of an ended run, made now unless it is there already; None while the run lives.

    Args:
        ended: its last state, where the caller has just followed it to its end and collected all of it.
        judged: gets a receipt that is made now as soon as it is written; the container is removed after that.

    Raises:
        EngineUnavailableError: the engine does not answer, so nobody can say whether the run has ended.
    """
    if not run.recorded:
        return load(run.folder)
    with run.lock("finalise"):
        if run.summary() is not None:
            return load(run.folder)
        from seatrial.runs.ending import end  # all that judges, which a run with a receipt does without

        return end(run, host, ended=ended, judged=judged)
