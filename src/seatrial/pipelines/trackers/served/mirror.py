"""Mirror: folders with links to the event files that runs have written, and to nothing else.

TensorBoard follows every link in a log folder, walks what it leads to, and its projector opens any path that a file
there names. Here it sees folders that we made and regular files that were found without following a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

#: In the name of every event file. Source: tensorboard/util/io_util.py, IsTensorFlowEventsFile.
_MARK = "tfevents"

#: Entries that one look takes in, and folders below each other: a run can make any number.
_MOST_ENTRIES, _MOST_LEVELS = 200_000, 12


class Mirror:
    """Keeps ``root`` like the sources.

    Args:
        root: made if need be; of this process alone.
        sources: name in ``root`` → folder, there or not yet, by a path without links.
    """

    def __init__(self, root: Path, sources: Mapping[str, Path]) -> None:
        self._root, self._sources = root, sources
        self._known: dict[str, str] = {}

    def look(self) -> None:
        """Take in what is new, and drop what is gone."""
        found = dict(self._found())
        for name in self._known.keys() - found.keys():
            with contextlib.suppress(OSError):
                (self._root / name).unlink()
                for folder in (self._root / name).parents:
                    if folder == self._root:
                        break
                    folder.rmdir()
        for name in found.keys() - self._known.keys():
            link = self._root / name
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(found[name])
        self._known = found

    def keep(self, every_s: float) -> None:
        """Look again and again, in a thread; large folders seldomer."""

        def watch() -> None:
            while True:
                started = time.monotonic()
                self.look()
                time.sleep(max(every_s, 10 * (time.monotonic() - started)))

        threading.Thread(target=watch, name="mirror", daemon=True).start()

    def _found(self) -> Iterator[tuple[str, str]]:
        """(path in root, event file)."""
        left = _MOST_ENTRIES
        for name, source in self._sources.items():
            folders = [(str(source), name, 0)] if os.path.realpath(source) == str(source) else []
            while folders and left > 0:
                path, shown, level = folders.pop()
                try:
                    with os.scandir(path) as entries:
                        for entry in entries:
                            left -= 1
                            if left <= 0:
                                break
                            mode = entry.stat(follow_symlinks=False).st_mode
                            if stat.S_ISDIR(mode) and level < _MOST_LEVELS:
                                folders.append((entry.path, f"{shown}/{entry.name}", level + 1))
                            elif stat.S_ISREG(mode) and _MARK in entry.name:
                                yield f"{shown}/{entry.name}", entry.path
                except OSError:  # gone, or not readable: another look will tell
                    continue
