"""Nonsense through the whole program: a documented exit code, a sentence on stderr, no traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import fork_server
from fuzz.hostile import BOMB
from seatrial.errors import EXIT_USAGE

#: File of the project → its content.
NONSENSE: dict[str, tuple[str, bytes]] = {
    "requirements": ("requirements.txt", b"torch ==== 2\n"),
    "requirements, bytes": ("requirements.txt", bytes(range(256))),
    "requirements, an escape": ("requirements.txt", b"\x1b]0;x\x07torch\n"),
    "pyproject": ("pyproject.toml", b"[project]\ndependencies = 3\n"),
    "pyproject, a list": ("pyproject.toml", b"project = []\n"),
    "pyproject, deep": ("pyproject.toml", b"a = " + b"[" * 50_000),
    "environment": ("environment.yml", BOMB.encode() + b"dependencies: [{pip: [*i]}]\n"),
    "setup": ("setup.py", b"a = 1" + b" + 1" * 20_000),
    "script": ("train.py", b"a = 1" + b" + 1" * 20_000),
    "script, a null byte": ("train.py", b"import torch\0"),
    "script, bytes": ("train.py", b"x = '\xff\xfe'"),
    "seatrial.toml": ("seatrial.toml", b"gpus = [[]]\n"),
    "seatrial.toml, an image that is an option": ("seatrial.toml", b'[image]\nready = "--privileged"\n'),
    "seatrial.toml, bytes": ("seatrial.toml", b"\xff\xfe"),
    "seatrial.toml, a number": ("seatrial.toml", b"cpus = 0x" + b"f" * 20_000),
}

#: Package files are read where an image is planned, or seatrial.toml is made.
READ_EVERYWHERE = ("train.py", "seatrial.toml")


def seatrial(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "SEATRIAL_STATE": str(project.parent / "state"), "COLUMNS": "200"}
    environ.pop("SEATRIAL_TRACEBACK", None)
    ended = fork_server.server().run(words, project, environ, 60)
    assert "Traceback" not in ended.stderr + ended.stdout
    assert "defect" not in ended.stderr
    assert "\x1b]" not in ended.stderr
    return ended


def refused(project: Path, name: str, *words: str) -> None:
    ended = seatrial(project, *words)
    assert ended.returncode == EXIT_USAGE, ended.stdout + ended.stderr
    assert name in ended.stderr
    assert "fix:" in ended.stderr


@pytest.mark.parametrize("known", [known for known, (name, _) in NONSENSE.items() if name in READ_EVERYWHERE])
def test_plan(project: Path, known: str) -> None:
    name, data = NONSENSE[known]
    (project / name).write_bytes(data)
    refused(project, name, "plan", "train.py", "--on", "local", "--gpus", "none")


@pytest.mark.parametrize("known", [known for known, (name, _) in NONSENSE.items() if name not in READ_EVERYWHERE])
def test_init_reads_the_packages(project: Path, known: str) -> None:
    name, data = NONSENSE[known]
    (project / name).write_bytes(data)
    refused(project, name, "init", "train.py", "--show")


@pytest.mark.docker
@pytest.mark.parametrize("known", NONSENSE)
def test_plan_of_an_image(project: Path, known: str) -> None:
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("Docker does not answer")
    name, data = NONSENSE[known]
    (project / name).write_bytes(data)
    refused(project, name, "plan", "train.py", "--on", "docker", "--gpus", "none")


def test_a_fifo(project: Path) -> None:
    os.mkfifo(project / "requirements.txt")
    refused(project, "requirements.txt is a FIFO", "init", "train.py", "--show")


def test_init(project: Path) -> None:
    (project / "train.py").write_bytes(b"import \xff")
    ended = seatrial(project, "init")
    assert ended.returncode == EXIT_USAGE
    assert "train.py:1" in ended.stderr


@pytest.mark.parametrize("data", [b"", b"FROM", b"\0\xff", b"x" * 300_000])
def test_check_what_is_no_dockerfile(project: Path, data: bytes) -> None:
    (project / "Dockerfile").write_bytes(data)
    ended = seatrial(project, "build", "--check", "Dockerfile")
    assert ended.returncode == EXIT_USAGE, ended.stdout + ended.stderr
    assert "Dockerfile" in ended.stderr
