"""Hold the command line of ``seatrial up``, and its console."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from seatrial.job.model import Job
from seatrial.runs.streams import Stream


@dataclass(frozen=True)
class UpRequest:
    """Holds the command line of ``seatrial up``.

    Attributes:
        names: services; () for all.
        files: named by ``-f``; () if the project's own is looked for.
        profiles: of the Compose file, added to those in COMPOSE_PROFILES.
        plan_only: print what would happen and change nothing. whole: with the override file.
        gpus, backend: replace the file's for each member. target: the machine that a plan is for.
        notify: replaces [notify] of the file; as typed.
    """

    project: Path
    names: tuple[str, ...] = ()
    name: str | None = None
    plan_only: bool = False
    whole: bool = False
    detach: bool = False
    gpus: str | None = None
    backend: str | None = None
    target: str | None = None
    as_json: bool = False
    files: tuple[Path, ...] = ()
    profiles: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()


@dataclass(frozen=True)
class Console:
    """Holds the functions by which the command line prints to the user and gets consent.

    Attributes:
        note: prints a line of ours. write: prints a target's output.
        building: while what it gives holds, what that gives takes the lines of a build or download.
        working: returns a context in which a terminal shows these words and the elapsed time.
        show: a whole answer (a plan, a receipt), on standard output.
        allow: returns when the user has allowed what a job asks for beyond a container; raises TrustError.
    """

    note: Callable[[str], None]
    building: Callable[[], AbstractContextManager[Callable[[str], None]]]
    write: Callable[[Stream, bytes], None]
    show: Callable[[str], None]
    allow: Callable[[Job], None]
    working: Callable[[str], AbstractContextManager[object]] = nullcontext
