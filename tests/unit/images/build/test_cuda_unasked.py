"""pip, a real one, on its way to a CUDA build of torch for a run without a GPU: ended before the gigabytes."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from seatrial.images.build.checks import CudaUnaskedError, without_cuda
from seatrial.system import command
from tables import cases

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
    """pip, asked without installing; its exit code and what it printed until its end, or until it was ended."""
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
    code, printed = pip(lines, [*lines, "nvidia-cublas==13.0"])  # asked for by name
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
