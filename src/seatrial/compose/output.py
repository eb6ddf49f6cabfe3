"""Show the outputs of a group's members on one terminal, and find a member's run by its name."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from seatrial.compose.group import Group, GroupStore, Member
from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.runs.streams import Stream
from seatrial.system.host import Host

if TYPE_CHECKING:
    from seatrial.compose.request import Console

#: A line that has not ended by then is passed on as it is: a progress bar writes no line feed at all.
_MOST_BYTES = 64 * 1024

#: Sequences that move the cursor or erase (ECMA-48, 8.3): after a member's name there is nothing to draw over.
_DRAWS = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTdfhl]")

#: Interval between searches for new members.
_INTERVAL_S = 0.3


class MemberOutput:
    """The outputs of several members on one terminal: whole lines, each behind the name of its member.

    Args:
        names: of all members, for a common width.
    """

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
        """Print what a member has written last without a line's end."""
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
    from seatrial.runs.watch import follow  # listings do without

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


def find_run(store: RunStore, reference: str) -> Run:
    """Find a run as ``RunStore.find`` does, or by a service's name in the newest group that has one of that name.

    Raises RunNotFoundError; for a service without a run, its sentence has the reason.
    """
    members = newest_members(store)
    runs = {name: member.run for name, (_, member) in members.items() if member.run is not None}
    without = next((found for name, found in members.items() if name == reference and name not in runs), None)
    try:
        return store.find(reference, also=runs)
    except RunNotFoundError:
        if without is None:
            raise
        group, member = without
        why = f": {member.why}" if member.why else ""
        raise RunNotFoundError(
            f'"{reference}" of group {group.id} has no run; it is {member.state}{why}',
            run=f"seatrial runs show {group.id}",
        ) from None


def newest_members(store: RunStore) -> dict[str, tuple[Group, Member]]:
    """Return each member's name → the newest group that has one, and it."""
    return {member.name: (group, member) for group in GroupStore(store).all() for member in group.members}
