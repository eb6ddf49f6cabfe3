"""down: stop what still runs of a group, or of all groups of a project."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.pipelines.compose import verbs
from seatrial.pipelines.group import ENDED, GroupStore
from seatrial.pipelines.request import Front
from seatrial.runs.store import RunStore


def down(runs: RunStore, reference: str | None, front: Front, environ: Mapping[str, str]) -> None:
    """Stop a group, or with None every one that has not ended. Raises RunNotFoundError for an unknown one."""
    store = GroupStore(runs)
    groups = store.all() if reference is None else [store.find(reference)]
    stopped = 0
    for group in groups:
        now = verbs.refresh(store, group, environ)
        if all(member.state in ENDED for member in now.members) and reference is None:
            continue
        verbs.down(store, now, front, environ)
        front.say(f"{now.name or now.id} is down")
        stopped += 1
    if not stopped:
        front.say("nothing of this project is up")
