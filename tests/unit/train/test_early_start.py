"""A recipe starts work before and during ``import torch``: once for each process."""

import gc
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from seatrial.train import early_start
from seatrial.train.errors import DataError

pytestmark = pytest.mark.torch

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
static int report(const char* what, int number) {
  FILE* log = fopen(getenv("DRIVER_LOG"), "a");
  fprintf(log, "%s %d\\n", what, number);
  fclose(log);
  return 0;
}
int cuInit(unsigned flags) { return report("init", flags); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal + 40; return report("device", ordinal); }
int cuDevicePrimaryCtxRetain(void** context, int device) { return report("context", device); }
"""


def ran(code: str, **environ: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_garbage_is_not_looked_for_during_the_imports_alone() -> None:
    code = """
import gc
from seatrial.train import early_start
early_start.begin()
assert not gc.isenabled()
import json
early_start.imported()
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""
    assert ran(code) == "True True\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_context_of_the_ranks_gpu_is_made_by_the_driver(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    log = tmp_path / "log"
    shown = {"LD_LIBRARY_PATH": str(tmp_path), "DRIVER_LOG": str(log), "LOCAL_RANK": "1"}
    assert ran("from seatrial.train import early_start; print(early_start.open_context())", **shown) == "True\n"
    assert log.read_text().splitlines() == ["init 0", "device 1", "context 41"]


@pytest.mark.parametrize(
    ("text", "major"),
    [("cuda: Optional[str] = '13.0'\n", "13"), ("cuda: str | None = None\n", "None"), ("hip = '6.1'\n", "None")],
)
def test_a_torch_for_the_cpu_gets_no_context(tmp_path: Path, text: str, major: str) -> None:
    """It would seem to use the GPU."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{text}")
    shown = "from seatrial.train import early_start; print(early_start.torch_cuda())"
    assert ran(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {shown}") == f"{major}\n"


def test_data_that_could_not_be_read_are_read_again(tmp_path: Path) -> None:
    """They may have been fetched since; the error then appears where it belongs."""

    def reader(folder: Path) -> str:
        if not (folder / "there").exists():
            raise DataError("not there")
        return "read"

    try:
        early_start.begin((reader, tmp_path))
    finally:
        gc.enable()
    with pytest.raises(DataError, match="not there"):
        early_start.read_ahead(reader, tmp_path)
    (tmp_path / "there").write_text("")
    assert early_start.read_ahead(reader, tmp_path) == "read"


@pytest.mark.slow
def test_a_recipe_as_a_program_trains_as_ever(tmp_path: Path) -> None:
    """With its data read during the imports, and everything else of this; the same weights as by a call."""
    import numpy as np
    from safetensors.numpy import load_file

    numbers = np.random.default_rng(0)
    for part, count in (("train", 96), ("t10k", 30)):
        images, labels = numbers.integers(0, 255, (count, 12, 12)), np.arange(count) % 3
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    given = f"['--epochs', '1', '--data', {str(tmp_path)!r}, '--precision', 'fp32', '--models'"
    run = "runpy.run_module('seatrial.recipes.mnist', run_name='__main__')"
    program = f"import runpy, sys; sys.argv[1:] = {given}, {str(tmp_path / 'a')!r}]; {run}"
    call = f"import sys; from seatrial.recipes import mnist; sys.exit(mnist.main({given}, {str(tmp_path / 'b')!r}]))"
    assert "epoch 1: loss" in ran(program) and "epoch 1: loss" in ran(call)
    first, second = (load_file(tmp_path / name / "mnist.safetensors") for name in "ab")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
