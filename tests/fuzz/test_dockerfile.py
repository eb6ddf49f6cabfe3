"""``seatrial build --check``: a user's Dockerfile and its .dockerignore."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzz.attack import attack, one_case
from fuzz.hostile import nearly
from seatrial.images.dockerfiles.lint import check_dockerfile

DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG CUDA=12.4.1
FROM nvidia/cuda:${CUDA}-cudnn8-devel-ubuntu22.04 AS builder
ENV PIP_NO_CACHE_DIR=1 A="b c"
RUN apt-get update && apt-key adv --fetch-keys 7fa2af80.pub && \\
    pip install torch==2.6.0+cu126 --index-url https://download.pytorch.org/whl/cu126
COPY --from=builder /opt /opt
COPY . /app
ADD ["data", "/data"]
FROM builder
RUN python -c "import torch; torch.cuda.is_available()"
USER root
ENTRYPOINT ["python", "train.py"]
"""
IGNORED = """\
# comment
.git
**/*.pyc
data/**
!data/keep.txt
*.py[cod]
/models
a?b
\\*
"""
_PIECES = (
    "*", "**", "**/", "?", "/", "!", "[", "]", "[a-z]", "[z-a]", "[^a]", "[!a]", "\\", "a", "é", " ",
    "#", "..", "{", "(", "|", "+", ".", "\t",
)  # fmt: skip


def check(folder: Path, name: str, data: bytes) -> object:
    (folder / name).write_bytes(data)
    return check_dockerfile(folder / "Dockerfile")


@pytest.fixture
def folder(project: Path) -> Path:
    (project / "Dockerfile").write_text("FROM python:3.11\nCOPY . /app\n")
    for name in ("data/keep.txt", "data/a/b.bin", ".git/config", "x.pyc", "a" * 200 + "b", "a" * 200):
        (project / name).parent.mkdir(exist_ok=True, parents=True)
        (project / name).write_text("x")
    return project


def test_dockerfile(folder: Path, cases: int) -> None:
    attack(lambda data: check(folder, "Dockerfile", data), nearly(DOCKERFILE), cases)


def test_dockerignore(folder: Path, cases: int) -> None:
    lines = st.lists(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join), max_size=6).map("\n".join)
    inputs = st.one_of(nearly(IGNORED), lines.map(lambda text: text.encode()))
    attack(lambda data: check(folder, ".dockerignore", data), inputs, cases)


KNOWN = {
    "stars": (".dockerignore", "*a" * 40 + "c"),
    "double stars": (".dockerignore", "**/" * 60 + "c"),
    "double stars in names": (".dockerignore", "**a" * 40 + "c"),
    "a class": (".dockerignore", "[z-a]"),
    "an open class": (".dockerignore", "a[b"),
    "many lines": (".dockerignore", "a*\n" * 100_000),
    "a long line": (".dockerignore", "a/" * 200_000),
    "FROM alone": ("Dockerfile", "FROM\n"),
    "FROM and options": ("Dockerfile", "FROM --platform=linux/amd64\nRUN x\n"),
    "many stages": ("Dockerfile", "FROM python:3.11 AS a\n" * 20_000),
    "many installs": ("Dockerfile", "FROM python:3.11\n" + "RUN pip install torch\n" * 20_000),
    "one long install": ("Dockerfile", "FROM python:3.11\nRUN pip install torch" + " a" * 200_000),
    "pip install": ("Dockerfile", "FROM python:3.11\nRUN " + "pip install " * 50_000),
    "spaces": ("Dockerfile", "FROM python:3.11\nRUN pip" + " " * 100_000 + "x"),
    "continued for ever": ("Dockerfile", "FROM python:3.11\nRUN a \\\n" + " b \\\n" * 50_000),
    "a version of many digits": ("Dockerfile", f"FROM python:3.{'9' * 5000}\nRUN pip install torch==2.6.0\n"),
    "a CUDA of many digits": ("Dockerfile", f"FROM nvidia/cuda:12.{'9' * 5000}-base\n"),
    "arguments of arguments": ("Dockerfile", "ARG A=$A\n" * 5000 + "FROM $A\n"),
    "copies": ("Dockerfile", "FROM python:3.11\n" + "COPY *a*a*a*a*a*a*a*a*ab /x\n" * 50),
}


@pytest.mark.parametrize("known", KNOWN)
def test_known(folder: Path, known: str) -> None:
    name, text = KNOWN[known]
    one_case(lambda data: check(folder, name, data), text.encode())


def test_a_bad_pattern_is_an_error_of_its_line(folder: Path) -> None:
    (folder / ".dockerignore").write_text("data\n[z-a]\n")
    (remark,) = (each for each in check_dockerfile(folder / "Dockerfile") if each.id == "dockerignore")
    assert (remark.line, remark.severity, remark.file) == (2, "error", folder / ".dockerignore")
