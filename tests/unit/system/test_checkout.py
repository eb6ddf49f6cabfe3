"""A project's git checkout, which may name programs that nobody shall start."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from seatrial.system import checkout


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("first")
    (folder / "other.txt").write_text("other")
    git(folder, "add", "train.py", "other.txt")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_what_differs_is_seen_from_a_folder_below_and_in_a_worktree(project: Path) -> None:
    below = project / "below"
    below.mkdir()
    git(project, "worktree", "add", "-q", "../worktree")
    for folder in (project, below, project.parent / "worktree"):
        assert checkout.commit(folder) is not None and not checkout.differs(folder)
    (project / "train.py").write_text("other")
    assert checkout.differs(project) and checkout.differs(below)
    assert not checkout.differs(project.parent / "worktree")


@pytest.mark.parametrize("trap", ["hook", "include", "submodule"])  # others: tests/attacks
def test_no_program_is_started_that_the_repository_names(project: Path, trap: str) -> None:
    mark = project.parent / "started"
    program = project / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    settings = project / ".git" / "config"
    if trap == "submodule":
        git(project.parent, "clone", "-q", str(project), "other")
        git(project, "submodule", "add", "-q", "../other", "sub")
        git(project, "commit", "-q", "-m", "sub")
        settings = project / ".git" / "modules" / "sub" / "config"
    if trap == "hook":
        hook = project / ".git" / "hooks" / "post-index-change"
        hook.write_text(program.read_text())
        hook.chmod(0o755)
        line = ""
    elif trap == "include":
        (project / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
        line = f"[include]\n\tpath = {project / 'more'}\n"
    else:
        line = f"[core]\n\tfsmonitor = {program}\n"
    settings.write_text(settings.read_text() + line)
    train = project / "train.py"
    train.write_text("FIRST")  # as long as before: git has to read it
    os.utime(project / "other.txt", (1, 1))  # read and found unchanged: git writes its index, and calls the hook
    git_would = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True)
    assert git_would.returncode == 0 and mark.exists(), "the trap is none"
    mark.unlink()
    assert checkout.commit(project) is not None and checkout.differs(project)
    assert not mark.exists()


@pytest.mark.parametrize("pipe", ["HEAD", "config", "index", "packed-refs", "refs/heads/x", "objects/aa/pipe", ""])
def test_a_pipe_in_a_checkout_holds_nobody_up(project: Path, pipe: str) -> None:
    path = project / ".git" / pipe
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True) if pipe else shutil.rmtree(path)
    os.mkfifo(path)
    began_s = time.monotonic()
    assert checkout.commit(project) is None and checkout.remote(project) is None and not checkout.differs(project)
    assert time.monotonic() - began_s < 60


def test_code_is_as_old_as_its_last_commit_whatever_else_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2021-09-03T12:00:00Z")
    (project / "train.py").write_text("second")
    git(project, "commit", "-q", "-a", "-m", "second")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2024-01-01T12:00:00Z")
    (project / "README.md").write_text("later")
    git(project, "add", "README.md")
    git(project, "commit", "-q", "-m", "third")
    git(project.parent, "clone", "-q", "--depth", "2", f"file://{project}", "shallow")
    (project / "train.py").write_text("an edit")
    assert [checkout.code_time(each) for each in (project, project.parent / "shallow")] == [1630670400.0] * 2
    shutil.rmtree(project / ".git")
    os.utime(project / "train.py", (1e9, 1e9))
    assert checkout.code_time(project) == 1e9
