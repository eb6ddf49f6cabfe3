"""Dockerfiles as people write them: each trap is found on its line, and a good one is left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.images.dockerfiles.lint import check_dockerfile
from seatrial.images.dockerfiles.parts import Remark
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts

GOOD = """\
FROM python:3.11-slim-bookworm
RUN --mount=type=cache,target=/root/.cache/pip pip install torch==2.13.0 numpy==2.4.6
USER 1000:1000
CMD ["python", "train.py"]
"""


UBUNTU = "FROM nvidia/cuda:12.1.0-runtime-ubuntu22.04 AS a\nRUN apt-get update && apt-get install -y"


def checked(tmp_path: Path, text: str) -> list[Remark]:
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    return check_dockerfile(file)


def test_a_good_one(tmp_path: Path) -> None:
    assert checked(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("text", "id", "line"),
    [
        ("FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04\nRUN pip3 install torch==2.13.0\n", "cuda-twice", 2),
        ("FROM nvidia/cuda:12.6.3-devel-ubuntu24.04\n", "devel-at-run-time", 1),
        (
            "ARG CUDA=12.6.3\nFROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04\n"
            "RUN pip install torch==2.7.1 \\\n  --index-url https://download.pytorch.org/whl/cu118\n",
            "cuda-differs",
            3,
        ),
        ("FROM nvidia/cuda:12.6.3-base-ubuntu24.04\nCMD python3 train.py\n", "python-missing", 2),
        ('FROM ubuntu:24.04\nRUN apt-get install -y python3\nENTRYPOINT ["python", "x.py"]\n', "python-missing", 3),
        ("FROM python:3.11-slim\nRUN pip install --no-cache-dir torch\n", "no-pins", 2),
        ("FROM pytorch/pytorch\n", "no-pins", 1),
        ("FROM python:3.11-slim\nUSER root\n", "root", 2),
        ("FROM python:3.11-slim\nRUN pip install torch==2.13.0\n", "pip-cache", 2),
        (
            "FROM python:3.11-slim\nRUN python -c 'import torch; assert torch.cuda.is_available()'\n",
            "gpu-at-build-time",
            2,
        ),
        ("FROM python:3.11-slim\n# nothing\n\nRUN nvidia-smi\n", "gpu-at-build-time", 4),
        ("FROM nvidia/cuda:12.6.3-cudnn9-runtime-ubuntu24.04\n", "cudnn-name", 1),
        ("FROM nvidia/cuda:11.8.0-cudnn-runtime-ubuntu22.04\n", "cudnn-name", 1),
        ("FROM nvidia/cuda:12.1-base-ubuntu22.04\n", "dead-tag", 1),
        ("FROM nvidia/cuda:latest\n", "dead-tag", 1),
        ("FROM nvidia/cuda:12.1.0-base\n", "dead-tag", 1),
        ("FROM nvidia/cuda:13.0.1-base-ubuntu20.04\n", "dead-tag", 1),
        (f"{UBUNTU} python3.11 python3-pip\nRUN pip3 install --no-cache-dir torch==2.1.0\n", "other-python", 3),
        (
            f"{UBUNTU} python3.11 python3-pip\nRUN python3 -m pip install --no-cache-dir torch==2.1.0\n",
            "other-python",
            3,
        ),
        (f"{UBUNTU} python3.11-venv\nCMD x\nFROM a\nRUN pip install --no-cache-dir torch==2.1.0\n", "other-python", 5),
        (
            f"{UBUNTU} python3.11 python3-pip\nRUN python3.11 -m pip install --no-cache-dir torch==2.1.0\n"
            'CMD ["python3", "train.py"]\n',
            "other-python",
            4,
        ),
        (
            "FROM debian:12-slim\nRUN apt-get update && apt-get install -y python3.13 python3-pip\n"
            "RUN pip3 install --no-cache-dir torch==2.9.0\n",
            "other-python",
            3,
        ),
        ("FROM python:3.11-slim\nENV PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512\n", "no-memory-limit", 2),
        ("FROM python:3.11-slim\nENV TF_FORCE_GPU_ALLOW_GROWTH=true\n", "no-memory-limit", 2),
        ("FROM python:3.11-slim\nRUN mount -o remount,size=8G /dev/shm\n", "shm", 2),
        ("FROM python:3.11-slim\nRUN apt-key adv --fetch-keys https://x/7fa2af80.pub\n", "apt-key", 2),
        ("FROM python:3.12-slim\nRUN pip install --no-cache-dir torch==2.0.1\n", "python-version", 2),
    ],
)
def test_each_trap_is_named_with_its_line(tmp_path: Path, text: str, id: str, line: int) -> None:
    found = [remark for remark in checked(tmp_path, text) if remark.id == id]
    assert [remark.line for remark in found] == [line]
    assert found[0].fix


def test_a_devel_image_in_the_builder_stage_alone_is_right(tmp_path: Path) -> None:
    text = "FROM nvidia/cuda:13.0.3-devel-ubuntu24.04 AS builder\nRUN make\n" + GOOD
    assert checked(tmp_path, text) == []


CUDA = "FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04"


@pytest.mark.parametrize(
    "lines",
    [
        "RUN pip3 install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
        "RUN pip3 install torch==2.13.0+cpu",
        "ENV PIP_INDEX_URL=https://download.pytorch.org/whl/cpu\nRUN pip3 install torch==2.13.0",
        "RUN pip3 install numpy==2.4.6 && python3 -c 'import torch'",
        "RUN pip3 install tensorflow==2.13.0",  # uses the base's CUDA
        "RUN pip3 install torch-geometric==2.6.0",
    ],
)
def test_cuda_is_there_once_where_no_wheel_brings_it(tmp_path: Path, lines: str) -> None:
    assert "cuda-twice" not in [remark.id for remark in checked(tmp_path, f"{CUDA}\n{lines}\n")]


@pytest.mark.parametrize("lines", ["RUN true && pip3 install torch==2.13.0", "RUN pip install 'tensorflow[and-cuda]'"])
def test_cuda_is_there_twice_where_a_wheel_brings_it(tmp_path: Path, lines: str) -> None:
    assert "cuda-twice" in [remark.id for remark in checked(tmp_path, f"{CUDA}\n{lines}\n")]
    assert "cuda-twice" in [remark.id for remark in checked(tmp_path, f"{CUDA} AS base\n{lines}\nFROM base\n")]


def test_stages_inherit(tmp_path: Path) -> None:
    text = "FROM nvidia/cuda:12.6.3-devel-ubuntu24.04 AS base\nFROM base\nUSER 1000\n"
    assert [remark.id for remark in checked(tmp_path, text)] == ["devel-at-run-time"]


@pytest.mark.parametrize("text", ["", "hello\n", "RUN true\n"])
def test_what_is_no_dockerfile(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not a Dockerfile"):
        checked(tmp_path, text)
    with pytest.raises(UsageError, match="there is no file"):
        check_dockerfile(tmp_path / "gone")


@pytest.mark.parametrize(
    "text",
    [
        f"{UBUNTU} python3.10 python3-pip\nRUN pip3 install torch==2.1.0\n",
        f"{UBUNTU} python3.11 python3-pip\nRUN python3.11 -m pip install torch==2.1.0\nCMD python3.11 train.py\n",
        f"{UBUNTU} python3.11 python3-pip\n"
        "RUN update-alternatives --install /usr/bin/python3 python3 /usr/bin/python3.11 1\nRUN pip3 install a==1\n",
        f"{UBUNTU} python3.11 curl\nRUN curl -s https://x/get-pip.py | python3.11\nRUN pip3 install torch==2.1.0\n",
        f"{UBUNTU} python3.11-venv\nRUN python3.11 -m venv /v\nENV PATH=/v/bin:$PATH\nRUN pip3 install torch==2.1.0\n",
        f"{UBUNTU} python3.11 python3-pip\nRUN python3.11 -m pip install -U pip\nRUN pip3 install torch==2.1.0\n",
        "FROM python:3.11-slim-bookworm\nRUN apt-get update && apt-get install -y python3.11\nRUN pip3 install a==1\n",
        "FROM alpine:3\nRUN apk add python3.11\nRUN pip3 install a==1\n",
    ],
)
def test_one_python_gets_no_remark(tmp_path: Path, text: str) -> None:
    assert "other-python" not in {remark.id for remark in checked(tmp_path, text)}


def test_other_python_is_told_once_with_both_versions(tmp_path: Path) -> None:
    text = f"{UBUNTU} python3.11 python3-pip\nRUN pip3 install a==1\nRUN pip3 install b==1\n"
    [remark] = [remark for remark in checked(tmp_path, text) if remark.id == "other-python"]
    assert "Python 3.10" in remark.message and "python3.11, which line 2 installs" in remark.message
    assert remark.fix.startswith("python3.11 -m pip install")


def test_advised_torch_is_the_planned_one(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    plan, _ = plan_image(job, script=ScriptFacts(imports=("torch",), framework="torch"), cpu_only=True)
    [remark] = [
        one for one in checked(tmp_path, "FROM python:3.11-slim\nRUN pip install torch\n") if one.id == "no-pins"
    ]
    assert f"torch=={plan.stack['torch']}" in remark.fix
