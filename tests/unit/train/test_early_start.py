"""A recipe starts work before and during ``import torch``: once for each process."""

import gc
import os
import shutil
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
    code = "import gc; from seatrial.train import early_start; early_start.begin(); assert not gc.isenabled();"
    code += "import json; early_start.imported(); print(gc.isenabled(), gc.get_freeze_count() > 1000)"
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
