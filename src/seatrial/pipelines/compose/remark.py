"""Remark: one thing found in a Compose file, its line, and the edit that mends it where one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seatrial.pipelines.compose.lines import Place

Severity = Literal["error", "warning", "hint"]


@dataclass(frozen=True)
class Edit:
    """Lines of a file to put in place of others.

    Attributes:
        first, last: 1-based, both replaced; last = first - 1 inserts before ``first``.
        text: new lines without their newlines; () deletes.
    """

    place: Place
    first: int
    last: int
    text: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """``error``: it cannot work like that. ``warning``: it will hurt. ``hint``: it does nothing, or not what it says.

    Attributes:
        fix: what to write, in words.
        edits: what ``--fix`` does; () where a person has to choose.
    """

    place: Place
    id: str
    severity: Severity
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "file": str(self.place.file),
            "line": self.place.line,
            **{name: getattr(self, name) for name in ("id", "severity", "message", "fix")},
            "fixable": bool(self.edits),
        }
