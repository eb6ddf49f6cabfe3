"""``seatrial build --check``: each trap is found on its line with a fix, and Dockerfiles without it get no remark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.images.lint.check import check_dockerfile
from seatrial.images.lint.dockerfile import Remark
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts

PY = "FROM python:3.11-slim\n"
TORCH = "FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\n"
CUDA = "FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04\n"
APT = "RUN apt-get update && apt-get install -y "
UBUNTU = f"FROM nvidia/cuda:12.1.0-runtime-ubuntu22.04 AS a\n{APT}"
WHL = "https://download.pytorch.org/whl"


def check(folder: Path, text: str) -> list[Remark]:
    file = folder / "Dockerfile"
    file.write_text(text)
    return check_dockerfile(file)


def ids(folder: Path, text: str) -> set[str]:
    return {each.id for each in check(folder, text)}


FOUND = [
    (PY + "ENV NVIDIA_VISIBLE_DEVICES=\n", "gpus-hidden", "error", 2),
    (PY + "ENV A=1 \\\n    NVIDIA_VISIBLE_DEVICES=void\n", "gpus-hidden", "error", 3),
    (PY + "env NVIDIA_VISIBLE_DEVICES none\n", "gpus-hidden", "error", 2),
    (PY + "ARG G=none\nENV NVIDIA_VISIBLE_DEVICES=${G}\n", "gpus-hidden", "error", 3),
    ("FROM x:1 AS base\nENV NVIDIA_VISIBLE_DEVICES=none\nFROM base\nRUN true\n", "gpus-hidden", "error", 2),
    (PY + 'ENV CUDA_VISIBLE_DEVICES=""\n', "gpus-hidden", "error", 2),
    (PY + "ENV CUDA_VISIBLE_DEVICES=0\n", "gpus-fixed", "warning", 2),
    (PY + "ENV NVIDIA_DRIVER_CAPABILITIES=utility,video\n", "no-compute", "error", 2),
    (PY + "ENV NVIDIA_DRIVER_CAPABILITIES compute\n", "no-utility", "warning", 2),
    (PY + "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH\n", "stubs-at-run-time", "error", 2),
    (PY + "ENV X=1 \\\n  LD_LIBRARY_PATH=/a:/usr/local/cuda/compat\n", "compat-at-run-time", "error", 3),
    (PY + "RUN echo /usr/local/cuda/lib64/stubs > /etc/ld.so.conf.d/s.conf\n", "stubs-at-run-time", "error", 2),
    (PY + "RUN ln -s /usr/local/cuda/lib64/stubs/libcuda.so /usr/lib/libcuda.so.1\n", "stubs-at-run-time", "error", 2),
    (PY + "RUN apt-get update && \\\n  apt-get install -y curl nvidia-driver-535\n", "driver-in-image", "error", 3),
    (PY + APT + "libcuda1\n", "driver-in-image", "error", 2),
    (PY + APT + "nvidia-utils-550=550.1\n", "driver-in-image", "error", 2),
    (PY + "RUN apt-get update && apt-get -y install cuda\n", "driver-in-image", "error", 2),
    (PY + "RUN if true; then \\\n    apt-get -y install cuda-12-4; \\\n  fi\n", "driver-in-image", "error", 3),
    ("FROM rockylinux:9\nRUN dnf install -y cuda-drivers\n", "driver-in-image", "error", 2),
    (CUDA + "RUN <<EOF\napt-get update\napt-get install -y cuda-drivers\nEOF\n", "driver-in-image", "error", 4),
    (PY + "RUN sh NVIDIA-Linux-x86_64-550.54.run --silent\n", "driver-in-image", "error", 2),
    (PY + "RUN apt-key adv --fetch-keys https://x/7fa2af80.pub\n", "apt-key", "error", 2),
    (PY + "RUN python -c 'import torch; assert torch.cuda.is_available()'\n", "gpu-at-build-time", "error", 2),
    (PY + "# nothing\n\nRUN nvidia-smi\n", "gpu-at-build-time", "error", 4),
    (PY + "RUN mount -o remount,size=8G /dev/shm\n", "shm", "error", 2),
    (PY + "ENV PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512\n", "no-memory-limit", "hint", 2),
    (PY + "ENV TF_FORCE_GPU_ALLOW_GROWTH=true\n", "no-memory-limit", "hint", 2),
    (CUDA + "RUN true && pip3 install torch==2.13.0\n", "cuda-twice", "warning", 2),
    (CUDA + "RUN pip install 'tensorflow[and-cuda]'\n", "cuda-twice", "warning", 2),
    ("FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04 AS a\nRUN pip install torch==2.13.0\nFROM a\n",
     "cuda-twice", "warning", 2),
    ("FROM nvidia/cuda:12.6.3-devel-ubuntu24.04 AS base\nFROM base\n", "devel-at-run-time", "warning", 2),
    ("ARG CUDA=12.6.3\nFROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04\n"
     f"RUN pip install torch==2.7.1 \\\n  --index-url {WHL}/cu118\n", "cuda-differs", "hint", 3),
    (f"FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\nRUN pip install torch==2.0.1 -i {WHL}/cu117\n",
     "cuda-differs", "error", 2),
    ("FROM nvidia/cuda:12.6.3-base-ubuntu24.04\nCMD python3 train.py\n", "python-missing", "error", 2),
    ('FROM ubuntu:24.04\nRUN apt-get install -y python3\nCMD ["python", "x.py"]\n', "python-missing", "error", 3),
    (CUDA + "RUN pip install torch==2.4.0\n", "python-missing", "error", 2),
    ("FROM nvidia/cuda:12.6.3-cudnn9-runtime-ubuntu24.04\n", "cudnn-name", "error", 1),
    ("FROM nvidia/cuda:11.8.0-cudnn-runtime-ubuntu22.04\n", "cudnn-name", "error", 1),
    ("FROM nvidia/cuda:12.1-base-ubuntu22.04\n", "dead-tag", "error", 1),
    ("FROM nvidia/cuda:latest\n", "dead-tag", "error", 1),
    ("FROM nvidia/cuda\n", "dead-tag", "error", 1),
    ("FROM nvidia/cuda:12.1.0-base\n", "dead-tag", "error", 1),
    ("FROM nvidia/cuda:13.0.1-base-ubuntu20.04\n", "dead-tag", "error", 1),
    ("FROM nvidia/cuda:12.2.0-base-ubuntu22.04\n", "old-tag", "hint", 1),
    (PY + "USER root\n", "root", "warning", 2),
    (PY + "RUN pip install torch\n", "no-pins", "warning", 2),
    (PY + f"RUN pip install --pre torch --index-url {WHL}/nightly/cu126\n", "nightly-unpinned", "warning", 2),
    ("FROM python:3.12-slim\nRUN pip install torch==2.0.1\n", "python-version", "error", 2),
    (TORCH + "RUN pip install torch==2.1.0\n", "torch-twice", "warning", 2),
    (TORCH + "RUN pip install -U torch\n", "torch-twice", "warning", 2),
    (TORCH + "RUN conda install -y pytorch -c pytorch\n", "torch-twice", "warning", 2),
    (PY + "RUN pip install torch==2.1.0\nRUN pip install torch==2.2.0\n", "torch-twice", "warning", 3),
    (PY + "RUN conda install -y pytorch=2.1\nRUN pip install torch==2.2.0\n", "torch-twice", "warning", 3),
    (CUDA + f"RUN pip install torch --index-url {WHL}/cpu\n", "cpu-torch", "error", 2),
    (TORCH + f"ENV PIP_EXTRA_INDEX_URL={WHL}/cpu\nRUN pip install torchaudio\n", "cpu-torch", "error", 3),
    (PY + "ENV NVIDIA_VISIBLE_DEVICES=all\nRUN pip install torch==2.6.0+cpu\n", "cpu-torch", "error", 3),
    (PY + "ENV NVIDIA_VISIBLE_DEVICES=all\nRUN pip install tensorflow-cpu==2.15.0\n", "cpu-framework", "error", 3),
    (CUDA + "RUN pip install jax==0.6.0 flax\n", "cpu-framework", "error", 2),
    (f"{UBUNTU}python3.11 python3-pip\nRUN pip3 install torch==2.1.0\n", "other-python", "warning", 3),
    (f"{UBUNTU}python3.11 python3-pip\nRUN python3 -m pip install torch==2.1.0\n", "other-python", "warning", 3),
    (f"{UBUNTU}python3.11-venv\nCMD x\nFROM a\nRUN pip install torch==2.1.0\n", "other-python", "warning", 5),
    (f"{UBUNTU}python3.11 python3-pip\nRUN python3.11 -m pip install torch==2.1.0\nCMD [\"python3\", \"train.py\"]\n",
     "other-python", "error", 4),
    (f"FROM debian:12-slim\n{APT}python3.13 python3-pip\nRUN pip3 install torch==2.9.0\n", "other-python",
     "warning", 3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "id", "severity", "line"), FOUND, ids=lambda value: str(value)[-40:])
def test_trap_is_found_on_its_line(tmp_path: Path, text: str, id: str, severity: str, line: int) -> None:
    [remark] = [each for each in check(tmp_path, text) if each.id == id]
    assert (remark.severity, remark.line) == (severity, line)
    assert remark.message and remark.fix and not remark.message.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        PY + "RUN pip install torch==2.13.0 numpy==2.4.6\nUSER 1000:1000\n",
        "FROM nvidia/cuda:13.0.3-devel-ubuntu24.04 AS builder\nRUN make\n" + PY,
        PY + "ENV NVIDIA_VISIBLE_DEVICES=none\nENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all\n",
        "FROM x:1 AS build\nENV NVIDIA_VISIBLE_DEVICES=none CUDA_VISIBLE_DEVICES=''\n" + PY,
        PY + "ENV NVIDIA_DRIVER_CAPABILITIES=${NVIDIA_DRIVER_CAPABILITIES:+$NVIDIA_DRIVER_CAPABILITIES,}graphics\n",
        PY + "ARG NVIDIA_VISIBLE_DEVICES=none\n",
        PY + "RUN LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs ldconfig\n",
        PY + "RUN ldconfig /usr/local/cuda/lib64/stubs && make && ldconfig\nENV LIBRARY_PATH=/x/stubs\n",
        PY + "RUN ln -s /c/stubs/libcuda.so /usr/lib/libcuda.so.1 && make && rm /usr/lib/libcuda.so.1\n",
        "FROM x:1 AS build\nENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs\nRUN true\n" + PY,
        "FROM x:1 AS build\nRUN apt-get update && apt-get install -y cuda-drivers\n" + PY,
        PY + APT + "cuda-toolkit-12-4 cuda-nvcc-12-4 libnvidia-container1\n",
        PY + APT + "libnvidia-ml-dev && make && apt-get purge -y libnvidia-ml-dev\n",
        PY + "RUN sh cuda_12.4.0_linux.run --silent --toolkit\n",
        PY + "# RUN nvidia-smi\nRUN echo 'run nvidia-smi' > /etc/motd\n",
        PY + "RUN apt-key del 7fa2af80 && curl -O https://x/machine-learning/7fa2af80.pub\n",
        TORCH + "RUN pip install torchvision\n",
        TORCH + "RUN pip install torch==2.3.0 torch-geometric==2.6\n",
        PY + 'RUN if [ -n "$N" ]; then pip install torch==2.1.0; else pip install torch==2.2.0; fi\n',
        PY + f"RUN pip install torch==2.6.0 --index-url {WHL}/cpu\n",
        PY + "RUN pip install tensorflow-cpu==2.15.0 jax==0.6.0\n",
        "FROM nvcr.io/nvidia/jax:24.10-py3\nRUN pip install jax==0.6.0\n",
        "FROM nvcr.io/nvidia/pytorch:25.04-py3\nRUN uv sync --locked --no-install-package torch\n",
        "FROM nvidia/cuda:99.0.0-base-ubuntu22.04\n",
        "FROM nvidia/cuda:${CUDA}-base\n",
        "FROM nvidia/cuda:12.4.1-base-ubi8\nRUN dnf install -y python39\nRUN pip3 install x==1\n",
        f"{UBUNTU}python3-pip\nRUN pip install numpy==2.4.6 && python3 -c 'import torch'\n",
        "FROM ubuntu:16.04\n" + APT + "python-dev\nRUN python get-pip.py\n",
    ],
    ids=lambda text: text[-40:],
)
def test_right_dockerfile_gets_no_remark(tmp_path: Path, text: str) -> None:
    assert ids(tmp_path, text) <= {"root", "old-tag"}


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("cuda-twice", f"{CUDA}RUN pip3 install torch==2.13.0 --index-url {WHL}/cpu\n"),
        ("cuda-twice", f"{CUDA}RUN pip3 install torch==2.13.0+cpu\n"),
        ("cuda-twice", f"{CUDA}ENV PIP_INDEX_URL={WHL}/cpu\nRUN pip3 install torch==2.13.0\n"),
        ("cuda-twice", f"{CUDA}RUN pip3 install tensorflow==2.13.0\n"),  # uses the base's CUDA
        ("cuda-twice", f"{CUDA}RUN pip3 install torch-geometric==2.6.0\n"),
        ("cpu-framework", f"{CUDA}RUN pip install jax[cuda12]==0.6.0\nRUN pip install jax flax\n"),
        ("cpu-framework", f"{CUDA}RUN pip install tensorflow-cpu==2.18.0 torch==2.9.0\n"),
        ("cpu-framework", f"{CUDA}RUN pip install jax==0.4.30 jaxlib==0.4.30+cuda12.cudnn89\n"),
        ("other-python", f"{UBUNTU}python3.10 python3-pip\nRUN pip3 install torch==2.1.0\n"),
        ("other-python", f"{UBUNTU}python3.11 python3-pip\nRUN python3.11 -m pip install a==1\nCMD python3.11 a.py\n"),
        (
            "other-python",
            f"{UBUNTU}python3.11 python3-pip\n"
            "RUN update-alternatives --install /usr/bin/python3 python3 /usr/bin/python3.11 1\nRUN pip3 install a==1\n",
        ),
        ("other-python", f"{UBUNTU}python3.11 curl\nRUN curl https://x/get-pip.py | python3.11\nRUN pip3 install a\n"),
        ("other-python", f"{UBUNTU}python3.11-venv\nRUN python3.11 -m venv /v\nRUN pip3 install torch==2.1.0\n"),
        ("other-python", f"{UBUNTU}python3.11\nRUN python3.11 -m pip install -U pip\nRUN pip3 install torch==2.1.0\n"),
        ("other-python", f"{PY}{APT}python3.11\nRUN pip3 install a==1\n"),
        ("other-python", "FROM alpine:3\nRUN apk add python3.11\nRUN pip3 install a==1\n"),
    ],
)  # fmt: skip
def test_neighbour_of_a_trap_is_not_that_trap(tmp_path: Path, id: str, text: str) -> None:
    assert id not in ids(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (PY + "ENV NVIDIA_DRIVER_CAPABILITIES=video\n", "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"),
        (PY + "ENV LD_LIBRARY_PATH=/a:/b/stubs:/c\n", "ENV LD_LIBRARY_PATH=/a:/c"),
        (PY + APT + "cuda-12-4\n", "apt-get install -y cuda-toolkit-12-4"),
        ("FROM nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04\n", "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu18.04"),
    ],
)
def test_fix_is_the_line_to_write(tmp_path: Path, text: str, fix: str) -> None:
    assert fix in [each.fix for each in check(tmp_path, text)]


def test_fix_in_place_of_the_line_removes_the_remark(tmp_path: Path) -> None:
    tried = 0
    for text, id, _, line in FOUND:
        [remark] = [each for each in check(tmp_path, text) if each.id == id]
        lines = text.splitlines()
        if not re.match(r"(ENV|FROM) ", remark.fix) or not lines[line - 1].startswith(remark.fix[:4]):
            continue
        tried += 1
        lines[line - 1] = remark.fix.partition("   #")[0]
        assert id not in ids(tmp_path, "\n".join(lines) + "\n"), text
    assert tried >= 8


def test_torch_of_a_requirements_file_is_a_second_one(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# torch==9\nnumpy==2.0\ntorch == 2.1.0  # old\n")
    found = check(tmp_path, TORCH + "COPY requirements.txt .\nRUN pip install -r requirements.txt\n")
    [remark] = [each for each in found if each.id == "torch-twice"]
    assert "torch == 2.1.0 in requirements.txt" in remark.message


def test_other_python_is_reported_once_with_both_versions(tmp_path: Path) -> None:
    text = f"{UBUNTU}python3.11 python3-pip\nRUN pip3 install a==1\nRUN pip3 install b==1\n"
    [remark] = [remark for remark in check(tmp_path, text) if remark.id == "other-python"]
    assert "Python 3.10" in remark.message and "python3.11, which line 2 installs" in remark.message
    assert remark.fix.startswith("python3.11 -m pip install")


def test_advised_torch_is_the_planned_one(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    plan, _ = plan_image(job, script=ScriptFacts(imports=("torch",), framework="torch"), cpu_only=True)
    [remark] = [one for one in check(tmp_path, PY + "RUN pip install torch\n") if one.id == "no-pins"]
    assert f"torch=={plan.stack['torch']}" in remark.fix


def test_text_that_is_not_a_dockerfile_is_refused(tmp_path: Path) -> None:
    for text in ("", "hello\n", "RUN true\n"):
        with pytest.raises(UsageError, match="not a Dockerfile"):
            check(tmp_path, text)
    with pytest.raises(UsageError, match="File not found"):
        check_dockerfile(tmp_path / "gone")
    (tmp_path / "Dockerfile").write_bytes(PY.encode("utf-16"))
    with pytest.raises(UsageError, match="is not text in UTF-8"):
        check_dockerfile(tmp_path / "Dockerfile")


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (PY + "ENV NVIDIA_VISIBLE_DEVICES=void\n", 1, "Dockerfile:2: error NVIDIA_VISIBLE_DEVICES is void"),
        (PY + "USER root\n", 0, "Dockerfile:2: warning it runs as root"),
    ],
)
def test_command_exits_with_1_only_for_an_error(tmp_path: Path, text: str, code: int, line: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    words = [sys.executable, "-m", "seatrial", "build", "--check", "Dockerfile"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and line in done.stdout
