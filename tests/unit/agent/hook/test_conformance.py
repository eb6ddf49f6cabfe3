"""Scripts that patch, trace, fork and pickle, with and without the hook: the laboratory's suite."""

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[3] / "lab" / "conform.py"


@pytest.mark.torch
def test_scripts_see_and_compute_the_same_with_the_hook():
    ended = subprocess.run([sys.executable, SUITE], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0 and "DIFFERS" not in ended.stdout, ended.stdout + ended.stderr[-2000:]
