"""Installed versions are compared with the planned ones, without an import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import ImageError
from seatrial.images.build.checks import _PROGRAM, check_stack, mismatch, torchvision_of
from seatrial.job.plan import ImagePlan
from seatrial.system.command import Completed
from tables import cases

CPU = {"python": "3.11", "torch": "2.13.0", "build": "cpu"}
CUDA = {"python": "3.11", "torch": "2.13.0", "build": "cu130", "cuda": "13.0"}


def image(stack: dict[str, str], **more: Any) -> ImagePlan:
    return ImagePlan(tag="x:1", build=True, base="python:3.11-slim-bookworm", stack=stack, **more)


def installed(folder: Path, version: str, version_py: str | None, **others: str) -> dict[str, Any]:
    """Run the program in an environment with these packages, of which none can be imported."""
    for name, each in {"torch": version, **others}.items():
        info = folder / f"{name}-{each}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {each}\n")
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    if version_py is not None:
        (folder / "torch" / "version.py").write_text(version_py)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=env, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@cases("version", "text", "torch", "cuda")
def test_a_build_is_read_without_importing_it(
    tmp_path: Path, version: str, text: str | None, torch: str, cuda: str | None
) -> None:
    found = installed(tmp_path, version, text, torchvision="0.28.0")
    assert (found["torch"], found.get("cuda", "unknown")) == (torch, cuda)
    assert found["torchvision"] == "0.28.0"


@pytest.mark.parametrize(
    ("found", "planned", "printed"),
    [
        ({"torch": "2.13.0+cpu", "cuda": None}, CPU, None),
        ({"torch": "2.13.0", "cuda": None}, CPU, None),
        ({"torch": "2.13.0+cu130", "cuda": "13.0"}, CUDA, None),
        ({"torch": "2.13.0", "cuda": "13.2"}, CUDA, None),  # the same driver does
        ({"torch": "2.13.0"}, CPU, None),
        ({}, CPU, None),
        ({"torch": "2.13.0+cu130", "cuda": "13.0"}, CPU, "torch 2.13.0+cu130 for CUDA 13.0, which is gigabytes"),
        ({"torch": "2.13.0+cu130", "cuda": "13.0"}, CPU, "and the plan has the CPU build"),
        ({"torch": "2.13.0+cpu", "cuda": None}, CUDA, "2.13.0+cpu, a CPU build, and the plan has the build cu130"),
        ({"torch": "2.13.0", "cuda": "12.6"}, CUDA, "has torch 2.13.0 for CUDA 12.6, and the plan has the build cu130"),
        ({"torch": "2.9.1", "cuda": None}, CPU, "has torch 2.9.1, and the plan has torch 2.13.0"),
        ({"torch": "2.13.0+cpu", "cuda": None, "torchvision": "0.28.0+cpu"}, CPU, None),
        ({"torch": "2.13.0+cpu", "cuda": None, "torchvision": "0.28.1"}, CPU, None),
        ({"torch": "2.13.0+cpu", "cuda": None, "torchvision": "0.17.0"}, CPU, "torchvision 0.17.0 do not belong"),
        ({"torch": "2.13.0+cpu", "cuda": None, "torchvision": "0.28.0+cu130"}, CPU, "do not belong"),
        ({"torch": "2.13.0+cpu", "cuda": None, "torchvision": "weekly"}, CPU, "do not belong"),
        ({"torch": "2.99.0", "torchvision": "0.1.0"}, {"python": "3.11"}, None),  # who knows
        ({"tensorflow-cpu": "2.20.0"}, {"tensorflow": "2.21.0"}, "has tensorflow 2.20.0, and the plan has"),
    ],
)
def test_against_the_plan(found: dict[str, Any], planned: dict[str, str], printed: str | None) -> None:
    finding = mismatch(found, image(planned))
    if printed is None:
        assert finding is None
    else:
        assert finding is not None and printed in finding.message
        assert finding.fix and finding.cause and "<" not in f"{finding.message} {finding.cause} {finding.fix}"


def test_the_way_out_names_the_build() -> None:
    finding = mismatch({"torch": "2.13.0+cu130", "cuda": "13.0"}, image(CPU))
    assert finding is not None and 'requirements = ["torch==2.13.0+cpu"]' in str(finding.fix)


def test_an_index_that_the_user_names_decides_the_build() -> None:
    assert mismatch({"torch": "2.13.0", "cuda": "13.0"}, image(CPU, index_decides=True)) is None
    assert mismatch({"torch": "2.13.0", "cuda": None}, image(CUDA, index_decides=True)) is not None


@pytest.mark.parametrize(("torch", "vision"), [("2.13.0+cu130", "0.28.0"), ("1.4.0", "0.5.0"), ("9.9", None)])
def test_pairs(torch: str, vision: str | None) -> None:
    assert torchvision_of(torch) == vision


class Store:
    """Answers as an engine would for one program."""

    def __init__(self, stdout: str, exit_code: int = 0) -> None:
        self.stdout, self.exit_code = stdout, exit_code

    def run_once(self, reference: str, argv: list[str], **more: Any) -> Completed:
        return Completed(tuple(argv), self.exit_code, self.stdout, "")


@pytest.mark.parametrize(("stdout", "code"), [("", 0), ("Traceback", 1), ('{"torch"', 1), ("", 127)])
def test_image_without_an_answer_is_left_to_the_verification(stdout: str, code: int) -> None:
    check_stack(image(CPU), "x:1", Store(stdout, code))  # type: ignore[arg-type]


def test_error_names_the_difference() -> None:
    store = Store('a banner\n{"torch": "2.13.0", "cuda": "13.0"}\n')
    with pytest.raises(ImageError, match="x:1 was not finished: the image has torch") as caught:
        check_stack(image(CPU), "x:1", store)  # type: ignore[arg-type]
    assert caught.value.run and "python:3.11-slim-bookworm" in str(caught.value.cause)
