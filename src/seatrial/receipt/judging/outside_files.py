"""Results that the target wrote outside of the kept folders: where each is now, and which are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.events import FilesOutside, is_result
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import CONTAINER_HOME, CONTAINER_RUN
from seatrial.job.units import format_bytes
from seatrial.receipt.evidence.fields import clean, items, mapping, whole
from seatrial.receipt.formatting import count
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.saved_model import CLOCK_SLACK_S, started_at
from seatrial.system.nofollow import NO_RESULTS, files_below

#: Files that a sentence names.
_MOST_NAMED = 5


def tell_outside(case: Case) -> list[str]:
    """A sentence each for what was copied out of the container, and for what is in the run's HOME."""
    told = []
    for event in case.evidence.all(FilesOutside):
        copied, number = items(event.keys.get("copied")), whole(event.keys.get("copied_files")) or 0
        outputs = case.host_folder(CONTAINER_RUN)
        if copied and number and outputs is not None:
            where = _shown(outputs / clean(str(event.keys.get("folder"))), case)
            told.append(
                f"{_written(number)} outside of the kept folders and copied to {where}: {_named(copied, number)}"
            )
    home = case.host_folder(CONTAINER_HOME)
    started = started_at(case)
    if home is not None and started is not None:
        found = []
        for entry in files_below(home, skip=NO_RESULTS):
            status = entry.stat(follow_symlinks=False)
            if is_result(entry.name) and status.st_size and status.st_mtime >= started - CLOCK_SLACK_S:
                found.append({"path": str(Path(entry.path).relative_to(home)), "bytes": status.st_size})
        if found:
            told.append(f"{_written(len(found))} to HOME, which is {_shown(home, case)}: {_named(found, len(found))}")
    return told


def lost_files(case: Case) -> Finding | None:
    """The finding of results that ended with the container, too many or too large to be copied out of it."""
    for event in reversed(case.evidence.all(FilesOutside)):
        number = whole(event.keys.get("lost_files")) or 0
        if number:
            return by_id("files-lost").finding(
                [f"{count(number, 'file')}: {_named(items(event.keys.get('lost')), number)}"]
            )
    return None


def _written(number: int) -> str:
    return f"{count(number, 'file')} {'was' if number == 1 else 'were'} written"


def _named(files: list[Any], number: int) -> str:
    entries = [mapping(each) for each in files[:_MOST_NAMED]]
    named = [f"{clean(str(each.get('path')))} ({format_bytes(whole(each.get('bytes')) or 0)})" for each in entries]
    more = number - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _shown(path: Path, case: Case) -> str:
    project = case.plan.job.project
    return str(path.relative_to(project)) if path.is_relative_to(project) else str(path)
