"""seal.json: the digest of every file of a run's record, as it was when the run was judged.

It is written before summary.json and holds that one's digest, so a run that has ended is sealed whole. A process
that can write the record can write a seal that fits: the seal's own digest, noted elsewhere, finds that.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from seatrial.errors import UntrustedPathError
from seatrial.runs.run import COPIED, HOME, SUMMARY, Run
from seatrial.runs.store import LINKED
from seatrial.system.nofollow import files_below
from seatrial.system.records import Folder

SEAL = "seal.json"

#: Name → size, and digest but of the largest files.
Entries = dict[str, tuple[int, Any]]

#: Files written after the judgement, by processes that announce the end or have followed it. Locks are empty.
LATER = frozenset({"notify.json", "notify-message.json", "notify.log", "notified.txt", "recorder.log"})

_MOST_BYTES = 8 << 20

_NOTHING = (-1, None)


def write_seal(run: Run, summary: bytes) -> None:
    """Seal the record as it is now, with the summary that is written next. Raises DiskError."""
    entries = {name: _entry(run.records, name) for name in _names(run) if name != SUMMARY and name not in LATER}
    entries[SUMMARY] = len(summary), hashlib.sha256(summary).hexdigest()
    run.records.write(SEAL, _encoded(entries))


def seal_of(run: Run) -> tuple[Entries, str] | None:
    """Return (sealed files, the seal's digest); None for a run of an earlier version.

    Raises UntrustedPathError: it is not as it was written.
    """
    try:
        entries = run.records.get(SEAL, _entries, max_bytes=_MOST_BYTES)
        data = run.records.load(SEAL, max_bytes=_MOST_BYTES)
    except FileNotFoundError:
        return None
    if data != _encoded(entries):
        raise UntrustedPathError(f"{run.folder / SEAL} was changed after it was written")
    return entries, hashlib.sha256(data).hexdigest()


def changes(run: Run, entries: Entries) -> list[str]:
    """Return a sentence for each file that is not as it was sealed, and for each copy that differs from its record."""
    names = _names(run)
    found = [f"{run.folder / name} is missing" for name in sorted(entries) if name not in names]
    for name in names:
        if name in entries and _entry(run.records, name, entries[name]) != entries[name]:
            found.append(f"{run.folder / name} was changed after it was written")
        elif name not in entries and name not in LATER:
            found.append(f"{run.folder / name} was added after the run was judged")
    for name in COPIED:
        copied = entries.get(name, _NOTHING)
        if os.path.lexists(run.place / name) and _entry(Folder(run.place), name, copied) != copied:
            found.append(f"{run.place / name} differs from the record; seatrial open shows that")
    for name in LINKED:
        if os.path.lexists(link := run.place / name) and (
            not link.is_symlink() or link.readlink() != run.folder / name
        ):
            found.append(f"{link} does not lead to the record; seatrial runs logs shows that")
    return found


def not_covered(run: Run, entries: Entries) -> list[str]:
    """Return the files without a digest among these; of one too large for one only its size is compared."""
    return [name for name in _names(run) if not entries.get(name, _NOTHING)[1]]


def _names(run: Run) -> list[str]:
    """Return every file of the record but locks, the seal and the container's HOME; links too."""
    found = files_below(run.folder, skip={HOME}, hidden=True, links=True)
    names = sorted(os.path.relpath(each.path, run.folder) for each in found)
    return [name for name in names if name != SEAL and not name.endswith(".lock")]


def _entry(folder: Folder, name: str, sealed: tuple[int, Any] = _NOTHING) -> tuple[int, Any]:
    """Return size and digest; of what cannot be read none, and of what has grown no digest."""
    most = {"max_bytes": sealed[0]} if sealed[1] else {}
    try:
        return folder.measure(name, **most)
    except (OSError, UntrustedPathError):
        return _NOTHING


def _entries(data: Any) -> Entries:
    return {str(name): (int(size), digest) for name, (size, digest) in data.items()}


def _encoded(entries: Entries) -> bytes:
    return json.dumps(entries, indent=1, sort_keys=True).encode()
