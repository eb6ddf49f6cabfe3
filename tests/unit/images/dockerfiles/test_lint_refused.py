"""What BuildKit or the container refuses, and neighbours that are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.images.dockerfiles.lint import check_dockerfile

PY, CUDA = "FROM python:3.11-slim-bookworm\n", "FROM nvidia/cuda:12.4.1-base-ubuntu22.04\n"
BUILDER = "FROM python:3.11-bookworm AS builder\n"
APT = "RUN apt-get update && apt-get install -y --no-install-recommends "


def found(folder: Path, text: str) -> dict[str, tuple[int, str, str]]:
    """ID → line, severity, fix."""
    (folder / "Dockerfile").write_text(text)
    return {each.id: (each.line, each.severity, each.fix) for each in check_dockerfile(folder / "Dockerfile")}


@pytest.mark.parametrize(
    ("text", "id", "line", "severity"),
    [
        (PY + "PIP install x==1\n", "unknown-instruction", 2, "error"),
        (PY + "RUN apt-get update\n  && apt-get install -y git\n", "unknown-instruction", 3, "error"),
        (PY + "RUN <<EOF\npip install torch==2.4.0\n", "unended", 2, "error"),
        (PY + "RUN <<EOF\necho\n EOF\n", "unended", 2, "error"),
        (PY + "USER nobody\n" + APT + "git\n", "not-root", 3, "error"),
        (CUDA + "RUN sudo apt-get update\n", "no-sudo", 2, "error"),
        (PY + 'ENV LR=1\nCMD ["python", "train.py", "--lr", "$LR"]\n', "not-filled-in", 3, "warning"),
        (CUDA + "RUN pip install torch==2.4.0\n", "python-missing", 2, "error"),
        ("FROM nvidia/cuda\n", "dead-tag", 1, "error"),
        (BUILDER + PY + "COPY --from=bilder /wheels /wheels\n", "unknown-stage", 3, "warning"),
        (PY + "COPY --chown=0:0 --from=builder /wheels /wheels\n", "unknown-stage", 2, "warning"),
        (BUILDER + PY + "COPY --from=2 /wheels /wheels\n", "unknown-stage", 3, "error"),
    ],
)
def test_it_is_told(tmp_path: Path, text: str, id: str, line: int, severity: str) -> None:
    assert found(tmp_path, text)[id][:2] == (line, severity)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (PY + 'maintainer me\nrun echo\nshell ["sh"]\nONBUILD RUN x\nSTOPSIGNAL 9\n', "unknown-instruction"),
        (PY + "RUN <<A <<-B\necho\nA\necho\n\tB\n", "unended"),
        (PY + APT + "git\nUSER nobody\n", "not-root"),
        (BUILDER + PY + "COPY --from=Builder /a /b\nCOPY --from=0 /c /d\n", "unknown-stage"),
        (BUILDER + PY + "COPY --from=ghcr.io/astral-sh/uv:0.9 /uv /bin/uv\n", "unknown-stage"),
        (BUILDER + PY + "COPY --from=busybox /bin/sh /a\nCOPY --from=$STAGE /b /c\n", "unknown-stage"),
        (BUILDER + PY + "COPY a--from=bilder /c\nRUN echo COPY --from=bilder\n", "unknown-stage"),
        (PY + "USER $NAME\n" + APT + "git\n", "not-root"),
        (PY + "USER me\nRUN sudo apt-get install -y git\n", "not-root"),
        (PY + 'USER me\nUSER "root"\n' + APT + "git\n", "not-root"),
        ("FROM nvidia/cuda:12.4.1-base-ubi8\nRUN dnf install -y python39\nRUN pip3 install x==1\n", "python-missing"),
        (PY + "USER me\nUSER root\n" + APT + "git\n", "not-root"),
        (CUDA + APT + "sudo\nRUN sudo true\n", "no-sudo"),
        (CUDA + "RUN echo the sudo group\n", "no-sudo"),
        (PY + 'CMD ["sh", "-c", "python train.py --lr $LR"]\n', "not-filled-in"),
        ("FROM nvcr.io/nvidia/pytorch:25.04-py3\nRUN uv sync --locked --no-install-package torch\n", "no-pins"),
        (PY + "CMD python train.py --lr $LR\n", "not-filled-in"),
        (CUDA + APT + "python3-pip\nRUN pip install torch==2.4.0\n", "python-missing"),
        ("FROM ubuntu:16.04\n" + APT + "python-dev\nRUN python get-pip.py\n", "python-missing"),
        (
            CUDA + "RUN apt-get install -y libnvidia-ml-dev && make && apt-get purge -y libnvidia-ml-dev\n",
            "driver-in-image",
        ),
    ],
)
def test_it_is_left_alone(tmp_path: Path, text: str, id: str) -> None:
    assert id not in found(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "id", "fix"),
    [
        (PY + 'CMD ["python", "a.py"  "--lr=$LR"]\n', "not-a-list", 'CMD ["python", "a.py", "--lr=$LR"]'),
        (
            "FROM nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04\n",
            "dead-tag",
            "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu18.04",
        ),
        (
            PY + 'CMD ["python", "my train.py", "--lr=$LR"]\n',
            "not-filled-in",
            r"""CMD ["/bin/sh", "-c", "exec python 'my train.py' \"--lr=$LR\""]""",
        ),
        (
            PY + 'ENTRYPOINT ["python", "a.py", "$LR"]\nCMD ["--epochs", "3"]\n',
            "not-filled-in",
            r"""ENTRYPOINT ["/bin/sh", "-c", "exec python a.py \"$LR\" \"$@\"", "python"]""",
        ),
        (PY + "RUN conda activate ml\n", "lost-setting", 'SHELL ["conda", "run", "-n", "ml", "/bin/bash", "-c"]'),
    ],
)
def test_the_line_to_write(tmp_path: Path, text: str, id: str, fix: str) -> None:
    assert found(tmp_path, text)[id][2].startswith(fix)


def test_torch_of_another_cuda_is_an_error_where_something_is_compiled(tmp_path: Path) -> None:
    install = "RUN pip install torch==2.0.1 --index-url https://download.pytorch.org/whl/cu117\n"
    for flavour, severity in (("devel", "error"), ("runtime", "hint")):
        base = f"FROM nvidia/cuda:12.1.1-{flavour}-ubuntu22.04\n{APT}python3-pip\n"
        assert found(tmp_path, base + install)["cuda-differs"][1] == severity


def test_the_line_is_the_commands_not_that_of_the_word_before_it(tmp_path: Path) -> None:
    text = PY + "RUN if true; then \\\n    git clone https://example.com/a.git; \\\n  fi\n"
    assert found(tmp_path, text)["git-unpinned"][0] == 3


def test_a_file_of_powershells(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(PY.encode("utf-16"))
    with pytest.raises(UsageError, match="is not text in UTF-8"):
        check_dockerfile(tmp_path / "Dockerfile")
