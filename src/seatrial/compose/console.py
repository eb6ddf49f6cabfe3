"""The command line of ``seatrial up``, its console, and the outputs of a group's members on it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seatrial.compose.group import Group, GroupStore
from seatrial.errors import SeatrialError
from seatrial.job.model import Job
from seatrial.runs.streams import Stream
from seatrial.system.host import Host

#: A line that has not ended by then is passed on as it is: a progress bar writes no line feed at all.
_MOST_BYTES = 64 * 1024
#: Sequences that move the cursor or erase (ECMA-48, 8.3): after a member's name there is nothing to draw over.
_DRAWS = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTdfhl]")
#: Interval between searches for new members.
_INTERVAL_S = 0.3


class UpRequest(NamedTuple):
    """Holds the command line of ``seatrial up``.

    Attributes:
        folder: has the project's own file, unless a folder above it has the file.
        names: services; () for all. files: named by ``-f``; () if the project's own is looked for.
        profiles: of the Compose file, added to those in COMPOSE_PROFILES.
        plan_only: print what would happen and change nothing. whole: with the override file.
        gpus, backend: replace the file's for each member. target: the machine that a plan is for.
    """

    project: Path
    folder: Path
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


@dataclass(frozen=True)
class Console:
    """Holds the functions by which the command line prints to the user and gets consent.

    Attributes:
        note: prints a line of ours. write: prints a target's output. show: prints a whole answer on standard output.
        building: returns a context whose value takes the lines of a build or download.
        working: returns a context in which a terminal shows these words and the elapsed time.
        allow: returns when the user has allowed what a job asks for beyond a container; raises TrustError.
    """

    note: Callable[[str], None]
    building: Callable[[], AbstractContextManager[Callable[[str], None]]]
    write: Callable[[Stream, bytes], None]
    show: Callable[[str], None]
    allow: Callable[[Job], None]
    working: Callable[[str], AbstractContextManager[object]] = nullcontext


class MemberOutput:
    """The outputs of several members on one terminal: whole lines, each behind the name of its member."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._width = max((len(name) for name in names), default=0)
        self._rest: dict[tuple[str, Stream], bytes] = {}
        self._lock = threading.Lock()

    def writer(self, name: str) -> Callable[[Stream, bytes], None]:
        """Return the function that takes a member's output."""

        def write(stream: Stream, data: bytes) -> None:
            with self._lock:
                whole = self._rest.pop((name, stream), b"") + data
                cut = len(whole) if len(whole) > _MOST_BYTES else max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
                if rest := whole[cut:]:
                    self._rest[name, stream] = rest
                self._write(name, stream, whole[:cut])

        return write

    def end(self, name: str) -> None:
        """Print the last output of a member, which has no line end."""
        streams: tuple[Stream, Stream] = ("stdout", "stderr")
        with self._lock:
            for stream in streams:
                self._write(name, stream, self._rest.pop((name, stream), b""))

    def _write(self, name: str, stream: Stream, data: bytes) -> None:
        lines = _DRAWS.sub(b"", data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        prefix = f"{name:<{self._width}} | ".encode()
        if lines:
            self._console.write(stream, b"".join(prefix + line + b"\n" for line in lines))


def follow_group(
    store: GroupStore, group: Group, console: Console, host: Host, *, until_end: bool, tail: int | None
) -> None:
    """Print the outputs of a group's runs; with ``until_end`` also of those that start later."""
    from seatrial.runs.watch import follow  # listings do not need it

    lines = MemberOutput(console, [member.name for member in group.members])
    followers: dict[str, threading.Thread] = {}

    def follow_one(run_id: str, name: str) -> None:
        with suppress(SeatrialError, OSError):  # of a run that was removed
            follow(store.runs.run(run_id), lines.writer(name), host, until_end=until_end, tail=tail)
        lines.end(name)

    while True:
        for member in group.members:
            if member.run is None or member.name in followers:
                continue
            thread = threading.Thread(target=follow_one, args=(member.run, member.name), daemon=True)
            followers[member.name] = thread
            thread.start()
            if not until_end:
                thread.join()  # one after the other: there is nothing to wait for
        if not until_end or group.state != "running":
            break
        time.sleep(_INTERVAL_S)
        group = store.read(group.id) or group
    for follower in followers.values():
        follower.join()
