"""A driver without a GPU behind it: fake_libcuda.c, compiled where a test's LD_LIBRARY_PATH finds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def compile_driver(folder: Path) -> Path:
    """Put libcuda.so.1 into the folder; its path."""
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return library


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it lies in. Needs ``cc``."""
    return compile_driver(tmp_path_factory.mktemp("driver")).parent
