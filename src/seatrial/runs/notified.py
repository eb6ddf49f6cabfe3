"""Who was told of an end, and who was not: what notify.py has written down."""

from __future__ import annotations

from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.system import nofollow

#: In a record: a line for each that was told, or not, and why.
NOTES = "notified.txt"

_MOST_BYTES = 1 << 20


def notes(folder: Path) -> list[str]:
    """What came of it; [] where nobody was to be told, or is not told yet."""
    try:
        text = nofollow.read_regular(folder / NOTES, most_bytes=_MOST_BYTES)
    except (OSError, SeatrialError):
        return []
    return text.decode("utf-8", "replace").splitlines()
