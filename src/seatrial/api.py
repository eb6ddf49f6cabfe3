"""The Python interface: the functions of the command line, with the same objects.

import seatrial

receipt = seatrial.run("train.py", args=["--epochs", "5"], gpus=1, data="./data")
receipt.criteria["gpu-busy"].passed
receipt.metrics("loss").values
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.backends import table
from seatrial.doctor import report
from seatrial.doctor.examine import CHAIN, HOST, Result, examine, with_third_party
from seatrial.doctor.inspection import InspectionRequest
from seatrial.doctor.machine import Machine
from seatrial.errors import SeatrialError, TrustError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job
from seatrial.job.model import Job
from seatrial.job.plan import Plan
from seatrial.planning import secrets
from seatrial.receipt.model import Receipt
from seatrial.runs import launch, run_actions
from seatrial.runs.run import Run as RecordedRun
from seatrial.runs.run import run_name
from seatrial.runs.status import RunLine, finalise, line_of
from seatrial.runs.store import store_of
from seatrial.runs.streams import Stream
from seatrial.runs.watch import ensure_recorder, follow
from seatrial.system.host import Host
from seatrial.system.project_files import project_root
from seatrial.system.records import TrustStore

__all__ = ["Receipt", "Run", "doctor", "plan", "run", "runs", "start"]
#: Receives text as the target prints it, both streams in order.
Output = Callable[[str], object]
#: Lines of output shown of a live run in a notebook.
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
        """Return the name that it was given; None if it has none."""
        return run_name(self._run)

    @property
    def line(self) -> RunLine:
        """Return its line in ``seatrial runs ls``: target, backend, status, seconds, headline."""
        return line_of(self._run, Host())

    @property
    def status(self) -> str:
        """Return its status: starting, waiting, running, done, stopped, failed or unknown."""
        return self.line.status

    @property
    def plan(self) -> Plan:
        """Return the plan that it was started with. Raises SeatrialError if its file cannot be read."""
        return self._run.plan()

    @property
    def receipt(self) -> Receipt | None:
        """Return the receipt; None while it lives. Raises EngineUnavailableError if its engine does not answer."""
        return finalise(self._run, Host())

    @property
    def output(self) -> str:
        """Return the target's output so far, both streams in order."""
        found: list[bytes] = []
        follow(self._run, lambda stream, data: found.append(data), Host(), until_end=False)
        return b"".join(found).decode("utf-8", "replace")

    def wait(self, *, output: Output | None = None) -> Receipt:
        """Wait for the end; return the receipt.

        Args:
            output: receives the target's output, from the beginning and as it comes.
        """

        def write(stream: Stream, data: bytes) -> None:
            if output is not None:
                output(data.decode("utf-8", "replace"))

        follow(self._run, write, Host())
        receipt = self.receipt
        assert receipt is not None, "a run followed to its end must have ended"
        return receipt

    def stop(self, *, kill: bool = False) -> Receipt:
        """Send SIGTERM, wait for the grace period, send SIGKILL (``kill``: at once); return the receipt."""
        return run_actions.stop(self._run, Host(), kill=kill)

    def __repr__(self) -> str:
        line, name = self.line, f" {self.name}" if self.name else ""
        result = line.headline or line.outcome or line.status
        return f"<Run {self.id}{name}: {line.target} on {line.backend}, {result}>"

    def _repr_html_(self) -> str:
        """Show the receipt in a notebook, or while it lives its state and its last lines."""
        try:
            if (receipt := self.receipt) is not None:
                return receipt._repr_html_()
            last = "\n".join(self.output.splitlines()[-_LAST_LINES:])
        except SeatrialError as error:
            last = error.message
        return f"<p><b>{html.escape(repr(self))}</b></p><pre>{html.escape(last)}</pre>"


def runs(project: Path | str | None = None, *, limit: int | None = None) -> list[Run]:
    """List runs of the project, newest first.

    Args:
        project: its folder; None: the nearest around this one that has runs.
        limit: this many at most.
    """
    found = store_of(None if project is None else Path(project)).all()
    return [Run(each) for each in reversed(found)][:limit]


def plan(
    target: str | None = None, *, args: Sequence[str] = (), project: Path | str | None = None, **options: Any
) -> Plan:
    """Plan a run, with the reason for every choice in ``plan.choices``. Changes nothing.

    Args:
        target: a script or recipe; else ``module=`` or ``image={"ready": …}``, or the target in the project's file.
        args: the target's own.
        project: the project's folder; None: the repository around this one.
        options: keys of seatrial.toml: ``gpus=2``, ``data="./data"``, ``on="docker"``,
            ``criteria={"accuracy": ">= 0.9"}``.

    Raises SeatrialError: the command line prints its ``message``, ``cause`` and ``run``.
    """
    job, host = _job(target, args, project, options), Host()
    secrets.check_secrets(job, host)
    return launch.plan_only(job, host)


def start(
    target: str | None = None,
    *,
    args: Sequence[str] = (),
    project: Path | str | None = None,
    trust: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Run:
    """Plan, build what is missing, and start the run in the background; it goes on when Python ends.

    Args:
        target, args, project, options: as for ``plan``.
        trust: allow the requests of the project's file beyond its folder and a container.
        progress: receives lines of the build, or of a ready image that is pulled.

    Raises SeatrialError: it did not start.
    """
    job, host = _job(target, args, project, options), Host()
    if job.asks and not trust and not TrustStore(host).allows(job.project, [ask.remembered for ask in job.asks]):
        problem = "This project needs permissions that were not granted yet"
        cause = "\n    ".join(["it requests:", *(ask.words for ask in job.asks)])
        raise TrustError(problem, cause=cause, run="seatrial.run(…, trust=True)")
    echo = progress or (lambda line: None)
    prepared = launch.prepare(job, host, building=lambda: nullcontext(echo), notifies=True)
    try:
        launch.start(prepared, host, echo)
    except (SeatrialError, KeyboardInterrupt):
        finalise(prepared.run, host)  # its receipt has the reason
        raise
    ensure_recorder(prepared.run)
    return Run(prepared.run)


def _print(text: str) -> None:
    """Print to the present standard output: a notebook's cell, or a file that it is redirected to."""
    sys.stdout.write(text)
    sys.stdout.flush()


def run(
    target: str | None = None,
    *,
    args: Sequence[str] = (),
    project: Path | str | None = None,
    trust: bool = False,
    output: Output | None = _print,
    **options: Any,
) -> Receipt:
    """Run to the end; return the receipt. A target that fails raises nothing: ``receipt.outcome`` has the result.

    Ctrl-C (a notebook's stop button) stops the run, which ends with a receipt as well.

    Args:
        target, args, project, trust, options: as for ``start``.
        output: receives the target's output as it comes; None: nothing does.

    Raises SeatrialError: it did not start.
    """
    begun = start(target, args=args, project=project, trust=trust, progress=None, **options)
    try:
        return begun.wait(output=output)
    except KeyboardInterrupt:
        return begun.stop()


def _job(target: str | None, args: Sequence[str], project: Path | str | None, options: dict[str, Any]) -> Job:
    flags: dict[str, Any] = {**options, "args": [str(word) for word in args]}
    if target is not None:
        flags["target"] = str(target)
    flags = {key: str(value) if isinstance(value, Path) else value for key, value in flags.items()}
    folder = project_root(Path()) if project is None else Path(project).absolute()
    return load_job(folder, flags, recipes=RECIPES, without_container=table.runs_here)


@dataclass(frozen=True)
class Examination:
    """The result of ``doctor``.

    Attributes:
        results: check by check, in the chain's order: ``check``, ``verdict``, ``seconds``, ``blocked_by``.
    """

    results: tuple[Result, ...]
    _full: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 ok, 1 warnings, 2 broken."""
        return report.exit_code(self.results)

    @property
    def first_broken(self) -> Result | None:
        """Return the first broken link, or None; the first of its ``verdict.findings`` has the ``fix``."""
        return next((result for result in self.results if result.verdict.status == "broken"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``seatrial doctor --json`` prints."""
        return report.to_dict(self.results)

    def markdown(self) -> str:
        """Return the text of ``seatrial doctor --report``: to paste, without names and secrets."""
        return report.markdown(self._full)

    _repr_markdown_ = markdown


def doctor(
    *, on: str = "auto", image: str | None = None, container: str | None = None, host_only: bool = False
) -> Examination:
    """Examine the whole GPU-container chain.

    Args:
        on: auto, docker, podman or local.
        image, container: inspect this image, or this running container.
        host_only: no container; under 1.5 s.
    """
    machine = Machine(Host(), on=on, inspect=InspectionRequest(image=image, container=container))
    chain = with_third_party([layer for layer in CHAIN if not host_only or layer.name in HOST])
    results = examine(machine, chain)
    return Examination(tuple(results), report.full(results, machine))
