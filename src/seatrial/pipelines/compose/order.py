"""Who waits for whom: what the file says, and what it leaves out though one writes what another reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.service import COMPLETED, Service, Volume


@dataclass(frozen=True)
class Wait:
    """``reader`` needs what ``writer``, a task, leaves in a volume.

    Attributes:
        written: the file has a depends_on between the two. explicit: with a condition in so many words.
    """

    writer: str
    reader: str
    volume: str
    written: bool
    explicit: bool

    @property
    def why(self) -> str:
        return f"{self.reader} reads the volume {self.volume}, which {self.writer} writes"


def missing_waits(file: ComposeFile) -> list[Wait]:
    """Readers that the file starts before their writer has ended.

    The writer is a task that may write the volume. The reader says that it comes after (``depends_on``), or mounts the
    volume read-only and is a task, too. A reader that shows what is being written (TensorBoard) has to be there before.
    """
    found = []
    for writer in file.services.values():
        if not writer.is_task:
            continue
        for reader in file.services.values():
            if reader.name == writer.name or reader.watches:
                continue
            condition = reader.depends_on.get(writer.name)
            if condition == COMPLETED or writer.name in _behind(file.services, reader.name, COMPLETED):
                continue
            volume = _handed_over(writer, reader, declared=condition is not None)
            if volume is None or reader.name in _behind(file.services, writer.name):
                continue
            explicit = condition is not None and file.lines.has(
                "services", reader.name, "depends_on", writer.name, "condition"
            )
            found.append(Wait(writer.name, reader.name, volume, condition is not None, explicit))
    return found


def added_waits(file: ComposeFile) -> list[Wait]:
    """Those of them that the override adds: not where the user has written another condition in so many words."""
    return [wait for wait in missing_waits(file) if not wait.explicit]


def needs(file: ComposeFile, added: list[Wait]) -> dict[str, tuple[str, ...]]:
    """Service → those whose successful end it waits for, the added ones included."""
    found: dict[str, tuple[str, ...]] = {}
    for name, service in file.services.items():
        own = [other for other, condition in service.depends_on.items() if condition == COMPLETED]
        own += [wait.writer for wait in added if wait.reader == name]
        found[name] = tuple(dict.fromkeys(own))
    return found


def never_together(all_needs: Mapping[str, tuple[str, ...]], one: str, other: str) -> bool:
    """Whether one of the two has ended before the other starts."""
    return other in _closure(all_needs, one) or one in _closure(all_needs, other)


def _closure(all_needs: Mapping[str, tuple[str, ...]], start: str) -> set[str]:
    seen: set[str] = set()
    pending = list(all_needs.get(start, ()))
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += all_needs.get(name, ())
    return seen


def _behind(services: Mapping[str, Service], start: str, condition: str | None = None) -> set[str]:
    """All that a service depends on, directly or not; with a condition: by that one alone."""
    edges = {
        name: tuple(other for other, each in service.depends_on.items() if condition in (None, each))
        for name, service in services.items()
    }
    return _closure(edges, start)


def _handed_over(writer: Service, reader: Service, *, declared: bool) -> str | None:
    """The volume that goes from one to the other, or None."""
    for volume in writer.volumes:
        if not volume.shared or volume.read_only:
            continue
        for other in reader.volumes:
            if other.kind != volume.kind or not _same(volume, other):
                continue
            if declared or (other.read_only and reader.is_task):
                return volume.source
    return None


def _same(one: Volume, other: Volume) -> bool:
    """One volume, or folders of which one holds the other."""
    if one.kind == "volume":
        return one.source == other.source
    return Path(one.source).is_relative_to(other.source) or Path(other.source).is_relative_to(one.source)
