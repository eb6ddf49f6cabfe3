"""Run: one run, alive or ended, as Python sees it; and the list of them."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

from seatrial.errors import EngineUnavailableError, SeatrialError
from seatrial.job.plan import Plan
from seatrial.receipt.model import Receipt
from seatrial.runs import listing, run_actions
from seatrial.runs.finish import finalise
from seatrial.runs.following.output import Stream
from seatrial.runs.following.watch import follow
from seatrial.runs.run import Run as RecordedRun
from seatrial.runs.run import run_name
from seatrial.runs.store import store_of
from seatrial.system.host import Host

#: Of a live run in a notebook.
_LAST_LINES = 15


class Run:
    """A run of this project.

    Attributes:
        id: e.g. ``20261120-231501-k3f9``. folder: in the project: receipt, logs, ``outputs``.
    """

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self.id = run.id
        self.folder = run.place

    @property
    def name(self) -> str | None:
        """As it was given, or None."""
        return run_name(self._run)

    @property
    def line(self) -> listing.Line:
        """Its line in ``seatrial runs ls``: target, backend, status, seconds, headline."""
        return listing.line_of(self._run, Host())

    @property
    def status(self) -> str:
        """starting, waiting, running, done, stopped, failed or unknown."""
        return self.line.status

    @property
    def plan(self) -> Plan:
        """What it was started with. Raises SeatrialError where its file cannot be read."""
        return self._run.plan()

    @property
    def receipt(self) -> Receipt | None:
        """None while it lives. Raises EngineUnavailableError where nobody can say whether it does."""
        return finalise(self._run, Host())

    @property
    def output(self) -> str:
        """What the target has printed so far, both streams in order."""
        found: list[bytes] = []
        follow(self._run, lambda stream, data: found.append(data), Host(), until_end=False)
        return b"".join(found).decode("utf-8", "replace")

    def wait(self, *, output: Callable[[str], object] | None = None) -> Receipt:
        """Until it has ended; its receipt.

        Args:
            output: gets what the target prints, from the beginning and as it comes.
        """

        def write(stream: Stream, data: bytes) -> None:
            if output is not None:
                output(data.decode("utf-8", "replace"))

        follow(self._run, write, Host())
        receipt = self.receipt
        assert receipt is not None, "a run followed to its end must have ended"
        return receipt

    def stop(self, *, kill: bool = False) -> Receipt:
        """SIGTERM, its grace period, SIGKILL (``kill``: at once); its receipt."""
        return run_actions.stop(self._run, Host(), kill=kill)

    def __repr__(self) -> str:
        line = self.line
        told = line.headline or line.outcome or line.status
        return f"<Run {self.id}{f' {self.name}' if self.name else ''}: {line.target} on {line.backend}, {told}>"

    def _repr_html_(self) -> str:
        """In a notebook: the receipt, or while it lives its state and its last lines."""
        try:
            if (receipt := self.receipt) is not None:
                return receipt._repr_html_()
            last = "\n".join(self.output.splitlines()[-_LAST_LINES:])
        except (EngineUnavailableError, SeatrialError) as error:
            last = error.message
        return f"<p><b>{html.escape(repr(self))}</b></p><pre>{html.escape(last)}</pre>"


def runs(project: Path | str | None = None, *, limit: int | None = None) -> list[Run]:
    """Runs of the project, newest first.

    Args:
        project: its folder; None: the nearest around this one that has runs.
        limit: this many at most.
    """
    found = store_of(None if project is None else Path(project)).all()
    return [Run(each) for each in reversed(found)][:limit]
