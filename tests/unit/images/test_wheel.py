from __future__ import annotations

import ast
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


def test_pip_installs_it_and_every_module_finds_what_it_imports_of_ours(tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL_NAME
    wheel.write_bytes(wheel_bytes())
    site = tmp_path / "site"
    install = ["pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    for path in (site / "seatrial").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seatrial."):
                module = site.joinpath(*str(node.module).split("."))
                assert module.with_suffix(".py").is_file() or module.is_dir(), f"{path.name} imports {node.module}"
