"""`seatrial run` of every project of the corpus in Docker, on the CPU: images are built, scripts run. Full tier."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project
from corpus.corpus import NAMES, Stranger, read
from seatrial.backends.containers.docker_and_podman import Docker

STRANGERS = [name for name in NAMES if read(name).run is not None]


@pytest.fixture
def project(
    request: pytest.FixtureRequest, tmp_path: Path, docker_backend: Docker, environ: dict[str, str]
) -> Iterator[Project]:
    stranger: Stranger = request.param
    made = Project(stranger.copy(tmp_path), "docker", environ, docker_backend.call)
    yield made
    made.clean()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("project", map(read, STRANGERS), indirect=True, ids=STRANGERS)
def test_run(project: Project, request: pytest.FixtureRequest) -> None:
    stranger: Stranger = request.node.callspec.params["project"]
    expected = stranger.run or {}
    words = ["--on", "docker", "--gpus", "none", *shlex.split(stranger.command)]
    ended = subprocess.run(
        project.argv("run", *words),
        cwd=project.folder,
        env=project.environ,
        input=stranger.stdin or "",
        capture_output=True,
        text=True,
        timeout=1100,
    )
    shown = ended.stdout + ended.stderr
    assert ended.returncode == expected.get("exit", 0), shown
    assert [part for part in expected.get("prints", []) if part not in ended.stdout] == [], shown
    assert [part for part in expected.get("says", []) if part not in shown] == [], shown
    root = project.folder
    assert [name for name in expected.get("leaves", []) if not (root / name).is_file()] == [], shown
