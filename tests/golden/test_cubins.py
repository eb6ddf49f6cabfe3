"""Machine code of every kernel is what a GPU has run: moving a text changes no byte of it.

A changed digest needs the GPU tests to pass before it lands. ``APPROVE=1 pytest tests/golden/test_cubins.py`` writes
the file anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")
import kernel_texts
from seatrial.train.kernels import runtime

APPROVED = Path(__file__).parent / "structure" / "cubins.json"

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_machine_code_is_unchanged(architecture: str) -> None:
    try:
        nvrtc = runtime.load_nvrtc(13)
    except OSError:
        pytest.skip("NVRTC of CUDA 13 is not installed: pip install nvidia-cuda-nvrtc")
    texts = {name: text for group in kernel_texts.GROUPS for name, text in kernel_texts.texts(group).items()}
    with ThreadPoolExecutor(2) as pool:
        codes = pool.map(lambda text: runtime.compile_text(nvrtc, text, architecture)[0], texts.values())
        found = sorted({hashlib.sha256(code).hexdigest()[:16] for code in codes})
    approved = json.loads(APPROVED.read_text()) if APPROVED.exists() else {}
    if os.environ.get("APPROVE"):
        APPROVED.write_text(json.dumps({**approved, architecture: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == approved[architecture]
