"""What every attack is held against: a secret and a file on the host, and what seatrial says of the run afterwards."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_project import Project
from seatrial.runs.store import Run, RunStore

READY = '[image]\nready = "python:3.11-slim-bookworm"\n'
SECRET = "canary-0f7c2d"


@dataclass
class Canaries:
    """Outside of the project: a file with a secret, and a home that nothing may touch."""

    home: Path

    @classmethod
    def plant(cls, folder: Path) -> Canaries:
        home = folder / "victim"
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh" / "id_rsa").write_text(SECRET)
        (home / "thesis.txt").write_text("years of work\n")
        return cls(home)

    def digest(self) -> str:
        """Of names, modes and contents."""
        sha = hashlib.sha256()
        for path in sorted(self.home.rglob("*")):
            sha.update(str(path).encode() + oct(path.lstat().st_mode).encode())
            sha.update(path.read_bytes() if path.is_file() else b"")
        return sha.hexdigest()


def record(project: Project, run_id: str | None = None) -> Run:
    """The host's record of a run, by default the last one that has one."""
    store = RunStore(project.folder, project.environ)
    recorded = [run for run in store.all() if run.recorded]
    return recorded[-1] if run_id is None else store.run(run_id)


def receipt(project: Project, run_id: str | None = None) -> dict[str, Any]:
    """As the host keeps it."""
    loaded: dict[str, Any] = json.loads((record(project, run_id).folder / "receipt.json").read_bytes())
    return loaded


def finding_ids(project: Project) -> set[str]:
    return {finding["id"] for finding in receipt(project)["findings"]}


def intact(project: Project, run_id: str | None = None) -> None:
    """``runs verify`` finds everything as it was written."""
    assert " intact: " in project.cli("runs", "verify", run_id or record(project).id).stdout


def link(path: Path, target: Path) -> None:
    """Replace whatever is at ``path`` by a link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        for inner in sorted(path.rglob("*"), reverse=True):
            inner.rmdir() if inner.is_dir() and not inner.is_symlink() else inner.unlink()
        path.rmdir()
    path.symlink_to(target)
