"""A run by any name that ``runs ls`` lists: a run's own, or that of the stage that it is."""

from __future__ import annotations

from seatrial.errors import RunNotFoundError
from seatrial.pipelines.group import Group, GroupStore, Member
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore


def find_run(store: RunStore, reference: str) -> Run:
    """As ``RunStore.find``; also by the name of a stage or service, in the newest group that has one of that name.

    Raises RunNotFoundError; its sentence tells of a stage that has come to no run.
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
    """Each member's name → the newest group that has one, and it."""
    return {member.name: (group, member) for group in GroupStore(store).all() for member in group.members}
