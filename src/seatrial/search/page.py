"""page (stub)."""

from __future__ import annotations

from pathlib import Path

from seatrial.search.search import Search
from seatrial.system.names import Names


def refresh(search: Search, names: Names) -> None:
    pass


def write(search: Search, names: Names) -> Path:
    return Path("index.html")
