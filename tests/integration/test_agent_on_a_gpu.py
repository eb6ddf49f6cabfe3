"""The agent on a real NVIDIA GPU: contract, proof of use, samples and energy."""

import os
import sys

import pytest

from agent_process import Agent
from seatrial.probe import nvml

GPUS = [gpu for gpu in nvml.inventory().gpus if not gpu.mig_enabled]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="NVML lists no GPU here")]

#: A context on the first GPU that CUDA shows, held for two seconds; no framework needed.
HOLDS_A_CONTEXT = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
for status in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
               cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)):
    assert status == 0, status
time.sleep(2)
"""


def required(tmp_path, script, gpu):
    entry = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "minor": gpu.minor,
    }
    # The base of this environment: as with --on local, the linker finds NVML by LD_LIBRARY_PATH too.
    python = os.path.realpath(sys.executable)
    return Agent(tmp_path, script, python, gpu_mode="required", check="driver", gpus=[entry], sample_interval_s=0.25)


def test_contract_context_samples_and_energy(tmp_path):
    gpu = GPUS[0]
    agent = required(tmp_path, HOLDS_A_CONTEXT, gpu)
    done = agent.run()
    assert done.returncode == 0, done.stderr
    assert agent.events("gpu.check")[0]["ok"] and agent.events("gpu.kernel")[0]["ok"]
    [context] = agent.events("gpu.context")
    assert context["uuid"] == gpu.uuid and context["pid"] == agent.events("target.started")[0]["pid"]
    [sampled] = agent.events("sample")[-1]["gpus"]
    assert sampled["memory_total_bytes"] == gpu.memory_bytes and sampled["power_w"] > 0
    assert agent.events("agent.finished")[0]["energy_j"][gpu.uuid] > 0


def test_a_target_that_leaves_the_gpu_alone_proves_nothing(tmp_path):
    agent = required(tmp_path, "import time; time.sleep(1)", GPUS[0])
    assert agent.run().returncode == 0 and agent.events("gpu.context") == []


def test_a_uuid_of_another_machine_is_exit_3(tmp_path):
    agent = required(tmp_path, "print('never')", GPUS[0]._replace(uuid="GPU-00000000-0000-0000-0000-000000000000"))
    done = agent.run()
    assert done.returncode == 3 and done.stdout == b"" and agent.events("finding")[0]["id"] == "other-gpus"
