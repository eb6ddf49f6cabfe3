"""Files that the agent carries into containers run on Python 3.8."""

import subprocess
import sys
from pathlib import Path

import pytest

import seatrial

pytest.importorskip("vermin")
PACKAGE = Path(seatrial.__file__).parent
CARRIED = [
    PACKAGE / name
    for name in (
        "__init__.py",
        "events",
        "frames.py",
        "agent",
        "common",
        "compat",
        "probe",
        "findings",
        "images/slim/program",
    )
]


def test_vermin_finds_nothing_newer_than_3_8():
    command = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "-t=3.8-",
        "--violations",
        "--no-tips",
        *map(str, CARRIED),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
