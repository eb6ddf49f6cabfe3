"""Making a plan, and starting a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from seatrial.api.run import Run
from seatrial.backends import table
from seatrial.errors import SeatrialError, TrustError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job
from seatrial.job.model import Job
from seatrial.job.plan import Plan
from seatrial.planning import secrets
from seatrial.receipt.model import Receipt
from seatrial.runs import launch
from seatrial.runs.finish import finalise
from seatrial.runs.following.watch import ensure_recorder
from seatrial.system.host import Host
from seatrial.system.trust import TrustStore

#: Gets text as the target prints it, both streams in order.
Output = Callable[[str], object]


def _print(text: str) -> None:
    """On whatever standard output is now: a notebook's cell, or where it is redirected to."""
    sys.stdout.write(text)
    sys.stdout.flush()


def plan(target: str | None = None, *, args: Sequence[str] = (), project: Path | str = ".", **options: Any) -> Plan:
    """What ``run`` would do, with the reason for every choice in ``plan.choices``. Changes nothing.

    Args:
        target: a script or recipe; else ``module=`` or ``image={"ready": …}``, or what the project's file names.
        args: the target's own.
        project: the project's folder.
        options: keys of seatrial.toml: ``gpus=2``, ``data="./data"``, ``on="docker"``,
            ``criteria={"accuracy": ">= 0.9"}``.

    Raises SeatrialError: its ``message``, ``cause`` and ``run`` are what the command line prints.
    """
    job, host = _job(target, args, project, options), Host()
    secrets.check_secrets(job, host)
    return launch.plan_only(job, host)


def start(
    target: str | None = None,
    *,
    args: Sequence[str] = (),
    project: Path | str = ".",
    trust: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Run:
    """Plan, build what is missing, and start the run in the background; it goes on when Python ends.

    Args:
        target, args, project, options: as for ``plan``.
        trust: allow what the project's file asks for beyond its folder and a container.
        progress: gets lines of the build, or of a ready image that is pulled.

    Raises SeatrialError: it did not start.
    """
    job, host = _job(target, args, project, options), Host()
    _require_consent(job, host, trust=trust)
    tell = progress or (lambda line: None)
    prepared = launch.prepare(job, host, building=lambda: nullcontext(tell), notifies=True)
    try:
        launch.start(prepared, host, tell)
    except (SeatrialError, KeyboardInterrupt):
        finalise(prepared.run, host)  # it has a receipt, which says why
        raise
    ensure_recorder(prepared.run)
    return Run(prepared.run)


def run(
    target: str | None = None,
    *,
    args: Sequence[str] = (),
    project: Path | str = ".",
    trust: bool = False,
    output: Output | None = _print,
    **options: Any,
) -> Receipt:
    """Run to the end; the receipt. A target that fails raises nothing: ``receipt.outcome`` tells.

    Ctrl-C (a notebook's stop button) stops the run, which ends with a receipt as well.

    Args:
        target, args, project, trust, options: as for ``start``.
        output: gets what the target prints, as it prints it; None: nothing does.

    Raises SeatrialError: it did not start.
    """
    begun = start(target, args=args, project=project, trust=trust, progress=None, **options)
    try:
        return begun.wait(output=output)
    except KeyboardInterrupt:
        return begun.stop()


def _job(target: str | None, args: Sequence[str], project: Path | str, options: dict[str, Any]) -> Job:
    flags = {**options, "args": [str(word) for word in args]}
    if target is not None:
        flags["target"] = str(target)
    for key, value in flags.items():
        if isinstance(value, Path):
            flags[key] = str(value)
    without = lambda name: not table.isolates(name)  # noqa: E731
    return load_job(Path(project).absolute(), flags, recipes=RECIPES, without_container=without)


def _require_consent(job: Job, host: Host, *, trust: bool) -> None:
    """Raises TrustError: what the project's file asks for was not allowed, now or before on the command line."""
    lines = [ask.remembered for ask in job.asks]
    if not lines or trust or TrustStore(host).allows(job.project, lines):
        return
    wishes = [ask.words for ask in job.asks]
    raise TrustError(
        "This project needs permissions that were not granted yet",
        cause="\n    ".join(["it requests:", *wishes]),
        run="seatrial.run(…, trust=True)",
    )
