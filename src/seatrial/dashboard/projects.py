"""Projects whose runs the page shows: one, or every one of this user.

The registry is the state folder: the first run of a project writes ``projects/<key>/project.json`` there (0049).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from seatrial.errors import RunNotFoundError, UntrustedPathError
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore, is_run_id, project_key
from seatrial.system.nofollow import read_regular
from seatrial.system.state import state_folder

_MOST_BYTES = 64 * 1024


class Projects:
    """Stores by their keys, which tell nothing of them: a page that is shown has them in its address.

    Args:
        first: the project where somebody stands, or that was named.
        environ: where the others are found; None: there is only the first.
    """

    def __init__(self, first: RunStore, environ: Mapping[str, str] | None = None) -> None:
        self.first, self._environ = first, environ
        self._stores = {_key(first.record): first}

    def all(self) -> dict[str, RunStore]:
        """Key → store, the first one first. Looks for new ones."""
        if self._environ is not None:
            for folder in sorted((state_folder(self._environ) / "projects").glob("*")):
                if _key(folder) not in self._stores and (path := _path_of(folder)) is not None:
                    self._stores[_key(folder)] = RunStore(path, self._environ)
        return dict(self._stores)

    def name_of(self, key: str) -> str:
        """What the project's folder is called; of one that ``all`` has told."""
        return self._stores[key].project.name

    def find(self, run_id: str) -> tuple[str, Run]:
        """(project's key, run) by ID alone, and only among the stores' own folders: no path can be made of it.

        Raises RunNotFoundError.
        """
        if is_run_id(run_id):
            for key, store in self.all().items():
                run = store.run(run_id)
                if run.folder.is_dir() and not run.folder.is_symlink():
                    return key, run
            for key, run in self.runs():
                if run.id == run_id:
                    return key, run
        raise RunNotFoundError("There is no such run")

    def runs(self) -> Iterator[tuple[str, Run]]:
        """(project's key, run) of every run, in no order."""
        for key, store in self.all().items():
            for run in store.all():
                yield key, run


def _key(record: Path) -> str:
    """The digest at the end of the folder's name."""
    return record.name.rpartition("-")[2]


def _path_of(folder: Path) -> Path | None:
    """The project that a folder of records is of; None where that cannot be read, or it is another's."""
    try:
        said = json.loads(read_regular(folder / "project.json", most_bytes=_MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError, UntrustedPathError, ValueError, RecursionError):
        return None
    path = said.get("project") if isinstance(said, dict) else None
    return Path(path) if isinstance(path, str) and project_key(Path(path)) == folder.name else None
