"""What hides or breaks GPUs in a Dockerfile, installs wrongly or never ends: found on its line, and only there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.images.dockerfiles.lint import check_dockerfile
from seatrial.images.dockerfiles.parts import Remark

#: Ids that nearly every Dockerfile has.
USUAL = {"root", "no-pins", "pip-cache"}


def checked(folder: Path, text: str) -> list[Remark]:
    file = folder / "Dockerfile"
    file.write_text(text)
    return check_dockerfile(file)


def ids(folder: Path, text: str) -> list[tuple[str, str, int]]:
    return [(each.id, each.severity, each.line) for each in checked(folder, text) if each.id not in USUAL]


PY = "FROM python:3.11-slim\n"
TORCH = "FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\n"

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
    (PY + "RUN apt-get update && apt-get install -y libcuda1\n", "driver-in-image", "error", 2),
    (PY + "RUN apt-get update && apt-get install -y nvidia-utils-550=550.1\n", "driver-in-image", "error", 2),
    (PY + "RUN apt-get update && apt-get -y install cuda\n", "driver-in-image", "error", 2),
    (PY + "RUN apt-get update && apt-get -y install cuda-12-4\n", "driver-in-image", "error", 2),
    ("FROM rockylinux:9\nRUN dnf install -y cuda-drivers\n", "driver-in-image", "error", 2),
    (PY + "RUN sh NVIDIA-Linux-x86_64-550.54.run --silent\n", "driver-in-image", "error", 2),
    (TORCH + "RUN pip install torch==2.1.0\n", "torch-twice", "warning", 2),
    (TORCH + "RUN pip install -U torch\n", "torch-twice", "warning", 2),
    (TORCH + "RUN conda install -y pytorch -c pytorch\n", "torch-twice", "warning", 2),
    (PY + "RUN pip install torch==2.1.0\nRUN pip install torch==2.2.0\n", "torch-twice", "warning", 3),
    (PY + "RUN conda install -y pytorch=2.1\nRUN pip install torch==2.2.0\n", "torch-twice", "warning", 3),
    (PY + "RUN pip install --pre torch --index-url https://download.pytorch.org/whl/nightly/cu126\n",
     "nightly-unpinned", "warning", 2),
    (PY + "RUN pip install git+https://github.com/a/b\n", "git-unpinned", "warning", 2),
    (PY + "RUN pip install 'b @ git+https://github.com/a/b.git@main#egg=b'\n", "git-unpinned", "warning", 2),
    (PY + "RUN git clone https://github.com/a/b && cd b && pip install .\n", "git-unpinned", "warning", 2),
    (PY + "RUN pip install -r requirements.txt\nCOPY requirements.txt .\n", "file-before-copy", "error", 2),
    (PY + "WORKDIR /app\nRUN pip install -r /app/requirements/base.txt\nCOPY . /app\n", "file-before-copy", "error", 3),
    (PY + "RUN pip install -e .\nCOPY . .\n", "file-before-copy", "error", 2),
    (PY + "RUN apt-get update && apt-get install git\n", "apt-asks", "error", 2),
    (PY + "RUN apt update\\\n && apt install --no-install-recommends ffmpeg\n", "apt-asks", "error", 3),
    ("FROM rockylinux:9\nRUN yum install gcc\n", "apt-asks", "error", 2),
    (PY + "RUN apt-get update\nRUN apt-get install -y git\n", "apt-split", "warning", 3),
    (PY + "RUN apt-get install -y git\n", "apt-no-lists", "error", 2),
    (PY + "RUN apt-get update && rm -rf /var/lib/apt/lists/*\nRUN apt install -y git\n", "apt-no-lists", "error", 3),
    (PY + "RUN export A=b\n", "lost-setting", "warning", 2),
    (PY + "RUN conda activate env\n", "lost-setting", "warning", 2),
    ("FROM nvidia/cuda:12.2.0-base-ubuntu22.04\n", "old-tag", "hint", 1),
    (PY + "RUN curl x | apt-key add -\n", "apt-key", "warning", 2),
    (PY + "ENTRYPOINT python train.py --epochs 3\n", "shell-entrypoint", "warning", 2),
    (PY + "ENTRYPOINT ['python', 'train.py']\n", "not-a-list", "error", 2),
    (PY + "CMD [python, train.py]\n", "not-a-list", "error", 2),
    ("FROM nvidia/cuda:12.6.3-base-ubuntu24.04\nRUN pip install torch --index-url https://download.pytorch.org/whl/cpu\n",
     "cpu-torch", "error", 2),
    (TORCH + "ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu\nRUN pip install torchaudio\n",
     "cpu-torch", "error", 3),
    (PY + "ENV NVIDIA_VISIBLE_DEVICES=all\nRUN pip install torch==2.6.0+cpu\n", "cpu-torch", "error", 3),
    (PY + "ENV NVIDIA_VISIBLE_DEVICES=all\nRUN pip install tensorflow-cpu==2.15.0\n", "cpu-framework", "error", 3),
    ("FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04\nRUN pip install jax==0.6.0 flax\n", "cpu-framework", "error", 2),
    ("FROM nvidia/cuda:12.6.3-base-ubuntu24.04\nRUN <<EOF\napt-get update\napt-get install -y cuda-drivers\nEOF\n",
     "driver-in-image", "error", 4),
]  # fmt: skip


@pytest.mark.parametrize(("text", "id", "severity", "line"), FOUND, ids=lambda value: str(value)[-40:])
def test_found(tmp_path: Path, text: str, id: str, severity: str, line: int) -> None:
    assert (id, severity, line) in ids(tmp_path, text)
    [remark] = [each for each in checked(tmp_path, text) if each.id == id]
    assert remark.message and remark.fix and not remark.message.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        PY + "ENV NVIDIA_VISIBLE_DEVICES=none\nENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all\n",
        "FROM x:1 AS build\nENV NVIDIA_VISIBLE_DEVICES=none CUDA_VISIBLE_DEVICES=''\n" + PY,
        PY + "ENV NVIDIA_DRIVER_CAPABILITIES=${NVIDIA_DRIVER_CAPABILITIES:+$NVIDIA_DRIVER_CAPABILITIES,}graphics\n",
        PY + "ARG NVIDIA_VISIBLE_DEVICES=none\n",
        PY + "RUN LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs ldconfig\n",
        PY + "RUN ldconfig /usr/local/cuda/lib64/stubs && make && ldconfig\nENV LIBRARY_PATH=/x/stubs\n",
        PY + "RUN ln -s /c/stubs/libcuda.so /usr/lib/libcuda.so.1 && make && rm /usr/lib/libcuda.so.1\n",
        "FROM x:1 AS build\nENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs\nRUN true\n" + PY,
        "FROM x:1 AS build\nRUN apt-get update && apt-get install -y cuda-drivers\n" + PY,
        PY + "RUN apt-get update && apt-get install -y cuda-toolkit-12-4 cuda-nvcc-12-4 libnvidia-container1\n",
        PY + "RUN sh cuda_12.4.0_linux.run --silent --toolkit\n",
        PY + "# RUN nvidia-smi\nRUN echo 'run nvidia-smi' > /etc/motd\n",
        TORCH + "RUN pip install torch torchvision\n",
        TORCH + "RUN pip install torch==2.3.0 torch-geometric==2.6\n",
        PY + "RUN if [ -n \"$N\" ]; then pip install torch==2.1.0; else pip install torch==2.2.0; fi\n",
        PY + "RUN pip install git+https://github.com/a/b@v1.0 'git+ssh://git@github.com/a/c.git@0123abc#egg=c'\n",
        PY + "RUN git clone -b v1.0 https://github.com/a/b\n",
        PY + "RUN git clone https://github.com/a/b\nWORKDIR b\nRUN git checkout 0123abc\n",
        PY + "COPY requirements*.txt ./\nRUN pip install -r requirements-gpu.txt\nCOPY . .\n",
        PY + "COPY list.txt /opt/requirements.txt\nRUN pip install -r /opt/requirements.txt\nCOPY . .\n",
        PY + "RUN --mount=type=bind,source=requirements.txt,target=r.txt pip install -r r.txt\nCOPY . .\n",
        PY + "RUN git clone -b v1 https://x/y && cd y && pip install -r requirements.txt\nCOPY . .\n",
        PY + "RUN curl -o r.txt https://x && pip install -r r.txt\nCOPY . .\n",
        PY + "RUN apt-get -qq update && apt-get -yqq install git && apt install -qq vim && yes | apt install x\n",
        PY + "RUN apt-get update && apt-get install git -y\n",
        PY + "RUN export A=b && make\nRUN cd x && make\n",
        PY + "RUN apt-key del 7fa2af80 && curl -O https://x/machine-learning/7fa2af80.pub\n",
        "FROM nvidia/cuda:99.0.0-base-ubuntu22.04\n",
        "FROM nvidia/cuda:${CUDA}-base\n",
        PY + "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --assume-yes git\n",
        PY + "RUN --mount=type=cache,target=/var/lib/apt/lists apt-get install -y git\n",
        "FROM x:1\nENTRYPOINT python a.py\nENTRYPOINT [\"python\", \\\n  \"b.py\"]\n",
        "FROM x:1\nENTRYPOINT exec python train.py\n",
        "FROM x:1\nCMD python train.py && echo [1, 2]\n",
        PY + "RUN pip install torch --index-url https://download.pytorch.org/whl/cpu\n",
    ],
    ids=lambda text: text[-40:],
)  # fmt: skip
def test_left_in_peace(tmp_path: Path, text: str) -> None:
    assert ids(tmp_path, text) == []


def test_a_requirements_file_with_another_torch(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# torch==9\nnumpy==2.0\ntorch == 2.1.0  # old\n")
    found = checked(tmp_path, TORCH + "COPY requirements.txt .\nRUN pip install -r requirements.txt\n")
    [remark] = [each for each in found if each.id == "torch-twice"]
    assert "torch == 2.1.0 in requirements.txt" in remark.message


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (PY + "ENTRYPOINT python train.py\n", 'ENTRYPOINT ["python", "train.py"]'),
        (PY + "ENTRYPOINT python train.py $ARGS\n", 'ENTRYPOINT ["/bin/sh", "-c", "exec python train.py $ARGS"]'),
        (PY + "CMD ['python', 'a.py']\n", 'CMD ["python", "a.py"]'),
        (PY + "ENV NVIDIA_DRIVER_CAPABILITIES=video\n", "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"),
        (PY + "ENV LD_LIBRARY_PATH=/a:/b/stubs:/c\n", "ENV LD_LIBRARY_PATH=/a:/c"),
        (PY + "RUN apt-get update && apt-get install git\n", "apt-get install -y git"),
        (PY + "RUN apt-get update\nRUN apt-get install -y git\n", "RUN apt-get update && apt-get install -y git"),
        (PY + "RUN apt-get update && apt-get install -y cuda-12-4\n", "apt-get install -y cuda-toolkit-12-4"),
    ],
)
def test_the_line_to_write_instead(tmp_path: Path, text: str, fix: str) -> None:
    assert fix in [each.fix for each in checked(tmp_path, text)]


@pytest.mark.parametrize(
    "text",
    [
        PY + "RUN pip install tensorflow-cpu==2.15.0 jax==0.6.0\n",
        "FROM nvcr.io/nvidia/jax:24.10-py3\nRUN pip install jax==0.6.0\n",
        "FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04\nRUN pip install jax[cuda12]==0.6.0\nRUN pip install jax flax\n",
        "FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04\nRUN pip install tensorflow-cpu==2.18.0 torch==2.9.0\n",
        "FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04\nRUN pip install jax==0.4.30 jaxlib==0.4.30+cuda12.cudnn89\n",
    ],
)
def test_a_framework_that_has_cuda_or_feeds_another_is_no_cpu_build(tmp_path: Path, text: str) -> None:
    assert "cpu-framework" not in [id for id, _, _ in ids(tmp_path, text)]


def test_every_fix_that_is_a_line_mends_it(tmp_path: Path) -> None:
    """Put in the place of the line, a fix that is an instruction leaves no remark of that kind."""
    tried = 0
    for text, id, _, line in FOUND:
        [remark] = [each for each in checked(tmp_path, text) if each.id == id]
        lines = text.splitlines()
        if not re.match(r"(ENV|ENTRYPOINT|CMD) ", remark.fix) or not lines[line - 1].startswith(remark.fix[:3]):
            continue
        tried += 1
        lines[line - 1] = remark.fix.partition("   #")[0]
        assert id not in [each.id for each in checked(tmp_path, "\n".join(lines) + "\n")], text
    assert tried >= 8


def test_the_command_ends_with_1_for_an_error_and_0_for_warnings(tmp_path: Path) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "Dockerfile").write_text(text)
        words = [sys.executable, "-m", "seatrial", "build", "--check", "Dockerfile"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    done = run(PY + "ENV NVIDIA_VISIBLE_DEVICES=void\n")
    assert done.returncode == 1 and "Dockerfile:2: error NVIDIA_VISIBLE_DEVICES is void" in done.stdout
    done = run(PY + "ENTRYPOINT python train.py\n")
    assert done.returncode == 0 and "Dockerfile:2: warning a shell is the first process" in done.stdout
