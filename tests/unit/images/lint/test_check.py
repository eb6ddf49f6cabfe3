"""``seatrial build --check``: each trap is found on its line with a fix, and Dockerfiles without it get no remark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from image_plans import planned
from seatrial.errors import UsageError
from seatrial.images.lint.check import check_dockerfile
from seatrial.images.lint.dockerfile import Remark
from seatrial.job.script import ScriptFacts
from tables import cases, constant

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


FOUND = constant(__file__, "FOUND")


@pytest.mark.parametrize(("text", "id", "severity", "line"), FOUND, ids=lambda value: str(value)[-40:])
def test_trap_is_found_on_its_line(tmp_path: Path, text: str, id: str, severity: str, line: int) -> None:
    [remark] = [each for each in check(tmp_path, text) if each.id == id]
    assert (remark.severity, remark.line) == (severity, line)
    assert remark.message and remark.fix and not remark.message.endswith(".")


@cases("text")
def test_right_dockerfile_gets_no_remark(tmp_path: Path, text: str) -> None:
    assert ids(tmp_path, text) <= {"root"}


@cases("id", "text")
def test_neighbour_of_a_trap_is_not_that_trap(tmp_path: Path, id: str, text: str) -> None:
    assert id not in ids(tmp_path, text)


@cases("text", "fix")
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


def test_other_python_is_reported_once_with_both_versions(tmp_path: Path) -> None:
    text = f"{UBUNTU}python3.11 python3-pip\nRUN pip3 install a==1\nRUN pip3 install b==1\n"
    [remark] = [remark for remark in check(tmp_path, text) if remark.id == "other-python"]
    assert "Python 3.10" in remark.message and "python3.11, which line 2 installs" in remark.message
    assert remark.fix.startswith("python3.11 -m pip install")


def test_advised_torch_is_the_planned_one(tmp_path: Path) -> None:
    plan = planned(tmp_path, script=ScriptFacts(imports=("torch",), framework="torch")).image
    [remark] = [one for one in check(tmp_path, PY + "RUN pip install torch\n") if one.id == "no-pins"]
    assert f"torch=={plan.stack['torch']}" in remark.fix


def test_text_that_is_not_a_dockerfile_is_refused(tmp_path: Path) -> None:
    for text in ("hello\n", "mkdir a\ncat > b\nRUN true\n"):
        with pytest.raises(UsageError, match="not a Dockerfile"):
            check(tmp_path, text)
    with pytest.raises(UsageError, match="File not found"):
        check_dockerfile(tmp_path / "gone")
    (tmp_path / "Dockerfile").write_bytes(PY.encode("utf-16"))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        check_dockerfile(tmp_path / "Dockerfile")


@cases("text", "code", "line")
def test_command_exits_with_1_only_for_an_error(tmp_path: Path, text: str, code: int, line: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    words = [sys.executable, "-m", "seatrial", "build", "--check", "Dockerfile"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and line in done.stdout
