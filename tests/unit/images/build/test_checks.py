"""Installed versions against planned ones, without an import; and pip stopped before a CUDA build nobody needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import ImageError
from seatrial.images.build.checks import _PROGRAM, CudaUnaskedError, check_stack, mismatch, without_cuda
from seatrial.job.plan import ImagePlan
from seatrial.system import command
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
        (folder / name / "version.py").write_text(f"__version__ = '{each}{'+cu130' * (name == 'torchvision')}'\n")
    (folder / "torch" / "version.py").unlink()
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
    assert found["torchvision"] == "0.28.0+cu130"


@cases("found", "no_cuda", "planned", "stack", "index_decides", "printed", "fix")
def test_against_the_plan(
    found: dict[str, Any],
    no_cuda: bool | None,
    planned: str | None,
    stack: dict[str, str] | None,
    index_decides: bool | None,
    printed: str | None,
    fix: str | None,
) -> None:
    shown = {**found, "cuda": None} if no_cuda else found
    finding = mismatch(
        shown, image(stack or {"CPU": CPU, "CUDA": CUDA}[planned or ""], index_decides=bool(index_decides))
    )
    if printed is None:
        assert finding is None
    else:
        assert finding is not None and printed in finding.message and (fix or "") in str(finding.fix)
        assert finding.fix and finding.cause and "<" not in f"{finding.message} {finding.cause} {finding.fix}"


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


TAG = "py3-none-manylinux_2_17_x86_64"
#: As PyTorch's index is where a firewall is between: nothing listens on this port.
CLOSED = "--extra-index-url http://127.0.0.1:1/whl/cpu"


def cuda_wheels(folder: Path) -> Path:
    """Serve a small PyPI: torch, whose description requires NVIDIA's libraries."""
    folder.mkdir()
    for name, version, tag, requires in (
        ("torch", "2.13.0", TAG, "Requires-Dist: nvidia-cublas\n"),
        ("nvidia_cublas", "13.0", "py3-none-any", ""),
    ):
        with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
            about = f"{name}-{version}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
            wheel.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            wheel.writestr(f"{about}/RECORD", "")
    return folder


def pip(requirements: list[str], watched: list[str]) -> tuple[int, list[str]]:
    """pip, run without installing; its exit code and what it printed until its end, or until it was ended."""
    printed: list[str] = []
    words = [word for line in requirements for word in line.split()]
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-cache-dir", *words]
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_FIND_LINKS": "", "PIP_NO_PROXY": "*"}
    env = {**{name: value for name, value in os.environ.items() if "proxy" not in name.lower()}, **alone}
    return command.stream(argv, without_cuda(printed.append, watched), env=env).exit_code, printed


def test_unreachable_index_is_reported_before_the_wheel_is_read(tmp_path: Path) -> None:
    lines = [f"--index-url {(tmp_path / 'none').as_uri()}", CLOSED, f"--find-links {cuda_wheels(tmp_path / 'all')}"]
    lines.append("torch==2.13.0")
    with pytest.raises(CudaUnaskedError) as reported:
        pip(lines, lines)
    assert "no GPU" in reported.value.message and "2 GB" in reported.value.message
    assert reported.value.cause is not None and "http://127.0.0.1:1/whl/cpu does not answer" in reported.value.cause
    assert (
        reported.value.run is not None
        and "pip install torch==2.13.0" in reported.value.run
        and CLOSED not in reported.value.run
    )


def test_cuda_libraries_show_a_cuda_build(tmp_path: Path) -> None:
    lines = ["--no-index", f"--find-links {cuda_wheels(tmp_path / 'all')}", "torch"]
    with pytest.raises(CudaUnaskedError, match="2 GB") as reported:
        pip(lines, lines)
    assert reported.value.cause is not None and "no CPU build" in reported.value.cause
    code, printed = pip(lines, [*lines, "nvidia-cublas==13.0"])  # requested by name
    assert code == 0 and "Would install nvidia_cublas-13.0 torch-2.13.0" in printed


@cases("line", "refused")
def test_line_of_pip_is_judged(line: str, refused: bool) -> None:
    printed: list[str] = []
    look = without_cuda(printed.append, ["torch==2.13.0"])
    if refused:
        with pytest.raises(CudaUnaskedError):
            look(line)
    else:
        look(line)
    assert printed == [line]
