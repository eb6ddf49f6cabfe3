"""A large module without its compiler's memory, in real interpreters, from the built archive."""

import json
import subprocess
import sys

import pytest

from agent_process import FLOOR
from seatrial.agent import isolation
from seatrial.system import agent_archive

PROGRAM = """
import ctypes.util, json, os, string, sys, threading
sys.path.insert(0, sys.argv[1])
from seatrial.agent.isolation import import_compiled_by_child
from seatrial.probe import processes
before = processes.read(os.getpid()).rss_bytes
module = import_compiled_by_child("pynvml")
grown = processes.read(os.getpid()).rss_bytes - before
import pynvml
error = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
print(json.dumps([grown, module is pynvml, type(error).__name__]))
"""


@pytest.mark.parametrize("python", [python for python in (sys.executable, FLOOR) if python])
def test_pynvml_costs_a_few_megabytes_and_works(tmp_path, python):
    archive = agent_archive.build(tmp_path)
    done = subprocess.run([python, "-I", "-c", PROGRAM, str(archive)], capture_output=True, text=True, check=True)
    grown_bytes, same, error = json.loads(done.stdout)
    assert grown_bytes < 5_000_000  # under 2 MB measured; 15 to 18 MB when this process compiles it
    assert same and error == "NVMLError_GpuIsLost"


def test_a_module_that_is_not_there():
    with pytest.raises(ImportError, match="no_such_module cannot be found"):
        isolation.import_compiled_by_child("no_such_module")
