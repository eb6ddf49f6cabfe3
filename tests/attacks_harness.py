"""Targets of every attack, a secret and a file on the host, and seatrial's report on the run afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_project import Project
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.system.host import Host

IMAGE = "python:3.11-slim-bookworm"
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
        """Return the digest of names, modes and contents."""
        return digest(self.home)


def digest(folder: Path) -> str:
    """Return the digest of names, modes and contents below a folder; links are not followed."""
    sha = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        sha.update(os.fsencode(path) + b"%o" % path.lstat().st_mode)
        sha.update(path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return sha.hexdigest()


class Arena:
    """An engine, projects to attack from, and around them what must stay as it is: the canaries, a stranger's container
    and another project's run that has ended.

    Attributes:
        stranger: ID of the container.
        other: the project whose run has ended.
    """

    def __init__(self, folder: Path, backend: str, engine: Sequence[str], environ: Mapping[str, str]) -> None:
        self.folder, self.backend, self.engine, self.environ = folder, backend, list(engine), dict(environ)
        self.canaries = Canaries.plant(folder)
        self.projects: list[Project] = []
        label = "seatrial.run=20200101-000000-zzzz"
        started = self.ask("run", "--detach", "--label", label, "--pull", "never", IMAGE, "sleep", "3600")
        self.stranger = started.splitlines()[-1]
        self.other = self.project("other")
        self.other.write("train.py", "print('done')")
        self.other.run("train.py", "--gpus", "none")
        self._before = self._state()

    def ask(self, *words: str) -> str:
        """Return the engine's own record."""
        return subprocess.run([*self.engine, *words], capture_output=True, text=True, check=True).stdout.strip()

    def project(self, name: str) -> Project:
        """A project of its own, with a ready image."""
        made = Project(self.folder / name, self.backend, self.environ, self.engine)
        made.write("seatrial.toml", READY)
        self.projects.append(made)
        return made

    def untouched(self) -> None:
        """Nothing around has changed, and the stranger's container runs."""
        assert self._state() == self._before

    def _state(self) -> tuple[str, ...]:
        running = self.ask("container", "inspect", "--format", "{{.State.Status}} {{.State.StartedAt}}", self.stranger)
        return running, self.canaries.digest(), digest(record(self.other).folder), digest(self.other.folder)

    def containers(self, run_id: str) -> list[str]:
        """IDs of the containers that carry this run's label."""
        return self.ask("ps", "--all", "--quiet", "--filter", f"label=seatrial.run={run_id}").split()

    def close(self) -> None:
        left = [self.stranger]
        for project in self.projects:
            for run in RunStore(project.folder, Host(project.environ)).all():
                left += self.containers(run.id) if not run.ended else []
        subprocess.run([*self.engine, "rm", "--force", *left], capture_output=True)


def record(project: Project, run_id: str | None = None) -> Run:
    """The host's record of a run, by default the last one."""
    store = RunStore(project.folder, Host(project.environ))
    return store.all()[-1] if run_id is None else store.run(run_id)


def receipt(project: Project, run_id: str | None = None) -> dict[str, Any]:
    """Return the record that the host keeps."""
    loaded: dict[str, Any] = json.loads((record(project, run_id).folder / "receipt.json").read_bytes())
    return loaded


def evidence(project: Project, run_id: str | None = None) -> list[dict[str, Any]]:
    """Every line of the record's events.jsonl."""
    text = (record(project, run_id).folder / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def finding_ids(project: Project) -> set[str]:
    return {finding["id"] for finding in receipt(project)["findings"]}


def intact(project: Project, run_id: str | None = None) -> None:
    """``runs verify`` finds everything as it was written."""
    assert " intact: " in project.cli("runs", "verify", run_id or record(project).id).stdout


def link(path: Path, target: Path) -> None:
    """Replace the file or folder at ``path`` by a link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        for inner in sorted(path.rglob("*"), reverse=True):
            inner.rmdir() if inner.is_dir() and not inner.is_symlink() else inner.unlink()
        path.rmdir()
    path.symlink_to(target)
