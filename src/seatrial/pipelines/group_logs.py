"""The logs of a group: its members' outputs, each line behind its member's name, until all have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from seatrial.errors import SeatrialError
from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.lines import Lines
from seatrial.pipelines.request import Front
from seatrial.runs.following.watch import follow

#: How often new members are looked for.
_INTERVAL_S = 0.3


def follow_group(
    store: GroupStore, group: Group, front: Front, environ: Mapping[str, str], *, until_end: bool, tail: int | None
) -> None:
    """Pass on what the runs of a group print, those that start later too where it is followed to its end."""
    lines = Lines(front, [member.name for member in group.members])
    followers: dict[str, threading.Thread] = {}
    while True:
        for member in group.members:
            if member.run is None or member.name in followers:
                continue
            arguments = (store, member.run, member.name, lines, environ, until_end, tail)
            followers[member.name] = threading.Thread(target=_follow, args=arguments, daemon=True)
            followers[member.name].start()
            if not until_end:
                followers[member.name].join()  # one after the other: there is nothing to wait for
        if not until_end or group.state != "running":
            break
        time.sleep(_INTERVAL_S)
        group = store.read(group.id) or group
    for follower in followers.values():
        follower.join()


def _follow(
    store: GroupStore,
    run_id: str,
    name: str,
    lines: Lines,
    environ: Mapping[str, str],
    until_end: bool,
    tail: int | None,
) -> None:
    with suppress(SeatrialError, OSError):  # of a run that was removed
        follow(store.runs.run(run_id), lines.writer(name), environ, until_end=until_end, tail=tail)
    lines.end(name)
