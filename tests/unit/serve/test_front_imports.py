"""A front holds no torch: N of them would take N times its memory and its second of start."""

from __future__ import annotations

import subprocess
import sys

import pytest

for needed in ("uvicorn", "uvloop", "httptools", "starlette", "python_multipart", "numpy"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")


def test_a_front_imports_no_torch():
    code = (
        "import sys, seatrial.serve.front, seatrial.serve.models; print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
