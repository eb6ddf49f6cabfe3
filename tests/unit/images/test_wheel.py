from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from seatrial.images.wheel import WHEEL_NAME, wheel_bytes


def test_equal_files_make_equal_bytes() -> None:
    assert wheel_bytes() == wheel_bytes()


def test_only_the_container_side_is_in_it() -> None:
    names = zipfile.ZipFile(io.BytesIO(wheel_bytes())).namelist()
    rooms = {name.split("/")[1] for name in names if name.startswith("seatrial/")}
    assert rooms >= {"__init__.py", "events.py", "train", "recipes"}
    assert not rooms & {"cli", "backends", "runs", "images", "job", "agent"}
    assert not [name for name in names if "__pycache__" in name]


def test_pip_installs_it_and_it_stands_alone(tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL_NAME
    wheel.write_bytes(wheel_bytes())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        "import importlib, pkgutil, sys; sys.path.insert(0, sys.argv[1]); import seatrial\n"
        "assert seatrial.__file__.startswith(sys.argv[1]), seatrial.__file__\n"
        "import seatrial.events, seatrial.train\n"
        "missing = [m for m in ('job', 'backends', 'images') if importlib.util.find_spec('seatrial.' + m)]\n"
        "assert not missing, missing"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script, site], check=True)
