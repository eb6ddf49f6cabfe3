"""The GPU contract end to end, with a CUDA driver made for it: the real agent, child, ctypes calls and events."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_process import Agent
from seatrial.probe import nvml

SOURCE = Path(__file__).parents[1] / "fake_libcuda.c"
HERE, OTHER = "de421f490f0c00000000000000000001", "de421f490f0c00000000000000000002"
UUID = {HERE: "GPU-de421f49-0f0c-0000-0000-000000000001", OTHER: "GPU-de421f49-0f0c-0000-0000-000000000002"}

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(nvml.present(), reason="this machine has a real driver"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", SOURCE], check=True)
    return folder


def required(tmp_path, *gpus, check="driver", **plan):
    entries = [{"index": 0, "uuid": UUID[gpu], "name": "NVIDIA Fake", "memory_bytes": 1, "minor": 0} for gpu in gpus]
    script = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    return Agent(tmp_path, script, gpu_mode="required", check=check, gpus=entries, **plan)


def run(agent, driver, **fake):
    return agent.run(env={**os.environ, "LD_LIBRARY_PATH": str(driver), **fake})


def test_the_gpu_of_the_plan_runs_a_kernel_and_then_the_target(tmp_path, driver):
    agent = required(tmp_path, HERE)
    done = run(agent, driver, FAKE_CUDA_GPUS=HERE)
    assert done.returncode == 0 and done.stdout == b"None\n"
    [check], [kernel] = agent.events("gpu.check"), agent.events("gpu.kernel")
    assert check["ok"] and check["cuda_driver"] == "13.0" and check["visible"][0]["uuid"] == UUID[HERE]
    assert check["visible"][0]["compute_capability"] == "9.0"
    assert kernel["ok"] and kernel["kind"] == "driver" and kernel["uuid"] == UUID[HERE] and kernel["ms"] >= 0


def test_gpus_beyond_the_plan_are_hidden_from_the_target(tmp_path, driver):
    agent = required(tmp_path, OTHER)
    done = run(agent, driver, FAKE_CUDA_GPUS=f"{HERE},{OTHER}")
    assert done.returncode == 0 and done.stdout.decode() == UUID[OTHER] + "\n"
    assert [kernel["uuid"] for kernel in agent.events("gpu.kernel")] == [UUID[OTHER]]


@pytest.mark.parametrize(
    ("fake", "visible"),
    [
        ({"FAKE_CUDA_GPUS": OTHER}, [UUID[OTHER]]),
        ({"FAKE_CUDA_GPUS": ""}, []),
        ({"FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_FAIL": "cuInit:999"}, []),
        ({"FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_FAIL": "cuCtxSynchronize:719"}, [UUID[HERE]]),
        ({"FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain:46"}, [UUID[HERE]]),
        ({"FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_WRONG": "1"}, [UUID[HERE]]),
    ],
)
def test_anything_else_is_exit_3_with_one_finding_and_no_target(tmp_path, driver, fake, visible):
    agent = required(tmp_path, HERE)
    done = run(agent, driver, **fake)
    assert done.returncode == 3 and done.stdout == b"" and agent.events("target.started") == []
    assert [gpu["uuid"] for gpu in agent.events("gpu.check")[0]["visible"]] == visible
    assert len(agent.events("finding")) == 1 and agent.exited()["cause"] == "gpu-contract"


def test_a_kernel_with_wrong_results_is_no_success(tmp_path, driver):
    agent = required(tmp_path, HERE)
    run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_CUDA_WRONG="1")
    assert agent.events("gpu.kernel")[0]["error"] == "the kernel ran but 256 of 256 results are wrong"


@pytest.mark.torch
def test_a_torch_without_cuda_is_named(tmp_path, driver):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    agent = required(tmp_path, HERE, check="torch")
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE).returncode == 3
    assert [event["kind"] for event in agent.events("gpu.kernel")] == ["driver", "torch"]
    assert agent.events("gpu.kernel")[1]["torch"]["version"] == torch.__version__
    assert agent.events("finding")[0]["id"] == "torch-cpu-only"


def test_a_target_without_torch_is_named(tmp_path, driver):
    (tmp_path / "torch.py").write_text("raise ImportError('libc10.so is broken')")
    agent = required(tmp_path, HERE, check="torch", env={"PYTHONPATH": str(tmp_path)})
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE).returncode == 3
    assert agent.events("gpu.kernel")[1]["error"] == "torch cannot be imported: ImportError: libc10.so is broken"


def test_a_stop_during_the_checks_ends_before_the_target(tmp_path, driver):
    agent = required(tmp_path, HERE)
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_SLEEP_S": "30"}
    process = subprocess.Popen(agent.command, stderr=subprocess.PIPE, env=env)
    agent.wait_for(lambda: agent.events("agent.started"))
    process.terminate()
    assert b"stopped by SIGTERM before the target was started" in process.communicate(timeout=10)[1]
    assert process.returncode == 128 + 15 and agent.events("target.started") == []
    assert agent.events("agent.finished")[0]["exit_code"] == 128 + 15
