"""``seatrial build --check``: a user's Dockerfile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.attack import attack, one_case
from fuzz.hostile import nearly
from seatrial.images.lint.check import check_dockerfile

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


def check(folder: Path, data: bytes) -> object:
    (folder / "Dockerfile").write_bytes(data)
    return check_dockerfile(folder / "Dockerfile")


def test_dockerfile(project: Path, cases: int) -> None:
    attack(lambda data: check(project, data), nearly(DOCKERFILE), cases)


KNOWN = {
    "FROM alone": "FROM\n",
    "FROM and options": "FROM --platform=linux/amd64\nRUN x\n",
    "many stages": "FROM python:3.11 AS a\n" * 20_000,
    "many installs": "FROM python:3.11\n" + "RUN pip install torch\n" * 20_000,
    "one long install": "FROM python:3.11\nRUN pip install torch" + " a" * 200_000,
    "pip install": "FROM python:3.11\nRUN " + "pip install " * 50_000,
    "spaces": "FROM python:3.11\nRUN pip" + " " * 100_000 + "x",
    "continued for ever": "FROM python:3.11\nRUN a \\\n" + " b \\\n" * 50_000,
    "a version of many digits": f"FROM python:3.{'9' * 5000}\nRUN pip install torch==2.6.0\n",
    "a CUDA of many digits": f"FROM nvidia/cuda:12.{'9' * 5000}-base\n",
    "arguments of arguments": "ARG A=$A\n" * 5000 + "FROM $A\n",
    "copies": "FROM python:3.11\n" + "COPY *a*a*a*a*a*a*a*a*ab /x\n" * 50,
}


@pytest.mark.parametrize("known", KNOWN)
def test_known(project: Path, known: str) -> None:
    one_case(lambda data: check(project, data), KNOWN[known].encode())
