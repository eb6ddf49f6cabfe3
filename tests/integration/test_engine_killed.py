"""The engine killed in the middle of a Compose task: a task that has ended is not run again.

An engine of the test's own is killed, in a network namespace of its own: dockerd changes its machine's bridge.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project
from seatrial.backends.containers.docker_and_podman import Docker

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGE = "python:3.11-slim-bookworm"
COMPOSE = """\
services:
  prep: &task
    image: python:3.11-slim-bookworm
    working_dir: /app
    command: python prep.py
    volumes: [".:/app", "handed:/app/handed", "model:/app/model"]
  train:
    <<: *task
    depends_on: [prep]
    command: python train.py
  last:
    <<: *task
    depends_on: {train: {condition: service_completed_successfully}}
    command: cat model/text
volumes: {handed: , model: }
"""
PREP = """\
import os, uuid
os.makedirs("handed", exist_ok=True)
open("handed/text", "w").write(uuid.uuid4().hex); print("prepared", open("handed/text").read(), flush=True)
"""
TRAIN = """\
import os, time
print("begun", flush=True); time.sleep(6)
os.makedirs("model", exist_ok=True)
open("model/text", "w").write("of " + open("handed/text").read()); print("trained", flush=True)
"""


class Engine:
    """A dockerd in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/docker.sock"

    def start(self) -> None:
        pid_file = self.folder / "pid"
        pid_file.unlink(missing_ok=True)
        words = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "pid"]
        paths = [word if word.startswith("--") else str(self.folder / word) for word in words]
        dockerd = " ".join(["dockerd", *paths, "--host", self.address])
        with (self.folder / "log").open("ab") as log:
            argv = ["unshare", "--net", "sh", "-c", f"ip link set lo up; exec {dockerd}"]
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + 60
        while subprocess.run(["docker", "-H", self.address, "info"], capture_output=True).returncode != 0:
            if time.monotonic() > deadline_s:
                pytest.skip(f"no second engine starts here: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.3)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(int((self.folder / "pid").read_text()), number)


@pytest.fixture(scope="module")
def engine(docker_backend: Docker) -> Iterator[Engine]:
    if os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root, dockerd and unshare")
    made = Engine(Path(tempfile.mkdtemp(prefix="seatrial-engine-")))  # pytest clears its own folders meanwhile
    made.start()
    with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saved:
        subprocess.run(["docker", "-H", made.address, "load"], stdin=saved.stdout, check=True, capture_output=True)
    yield made
    made.kill(signal.SIGTERM)
    time.sleep(3)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{made.folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def project(engine: Engine, environ: dict[str, str], tmp_path: Path) -> Project:
    made = Project(tmp_path / "killed", "docker", {**environ, "DOCKER_HOST": engine.address}, ["docker"])
    for name, text in {"prep.py": PREP, "train.py": TRAIN}.items():
        made.write(name, text)
    return made


def begun(project: Project, engine: Engine) -> tuple[subprocess.Popen[bytes], Path]:
    """``seatrial up``, once ``train`` has begun, and where its output goes."""
    out = project.folder.parent / "out"
    with out.open("wb") as file:
        argv = [sys.executable, "-m", "seatrial", "up", "--trust", "--gpus", "none", "--on", "docker"]
        running = subprocess.Popen(argv, cwd=project.folder, env=project.environ, stdout=file, stderr=file)
    try:
        project.wait_for(lambda: b"begun" in out.read_bytes() or running.poll() is not None)
    except BaseException:
        running.kill()
        raise
    assert running.poll() is None, out.read_text() + (engine.folder / "log").read_text()[-2000:]
    return running, out


@pytest.mark.parametrize("down_s", [1.0, 9.0], ids=["for a moment", "for longer than the target ran"])
def test_up_goes_on_from_what_is_complete(project: Project, engine: Engine, down_s: float) -> None:
    project.write("compose.yaml", COMPOSE)
    running, out = begun(project, engine)
    engine.kill()
    assert running.wait(120) == 5, out.read_text()
    assert "the Docker daemon does not respond" in out.read_text()
    time.sleep(down_s)
    engine.start()
    ended = project.cli("up", "--gpus", "none", "--on", "docker", timeout_s=300)
    assert "prepared" not in ended.stdout and "trained" in ended.stdout, ended.stdout + ended.stderr
    prepared = next(line.split()[-1] for line in out.read_text().splitlines() if "prepared" in line)
    assert f"of {prepared}" in ended.stdout
    left = subprocess.run(["docker", "-H", engine.address, "ps", "-aq"], capture_output=True, text=True).stdout
    assert left == ""
