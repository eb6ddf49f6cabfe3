"""The mailbox: an actor beside the searcher, where trials leave messages and files, and ask whether they are to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Mailbox:
    """Keeps everything until the searcher takes it; only the searcher writes into the study.

    Args:
        folder: where archives of runs are put together.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._messages: list[tuple[int, dict[str, Any]]] = []
        self._over: tuple[str, str | None] | None = None
        self._stopped: dict[int, tuple[str, str | None]] = {}

    def put(self, number: int, message: dict[str, Any]) -> None:
        """A trial's message."""
        self._messages.append((number, message))

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """The messages that have come since, in the order of each trial."""
        taken, self._messages = self._messages, []
        return taken

    def write(self, run_id: str, data: bytes) -> None:
        """A further piece of a run's archive."""
        with (self._folder / f"{Path(run_id).name}.tar").open("ab") as file:
            file.write(data)

    def end(self, origin: str, why: str | None) -> None:
        """All trials are to end."""
        self._over = (origin, why)

    def stop(self, number: int, origin: str, why: str | None) -> None:
        """One trial is to end."""
        self._stopped[number] = (origin, why)

    def over(self, number: int) -> tuple[str, str | None] | None:
        """(origin, why) with which this trial is to end, or None: it goes on."""
        return self._over or self._stopped.get(number)
