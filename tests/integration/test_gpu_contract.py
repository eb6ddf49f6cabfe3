"""The GPU contract end to end, with a CUDA driver made for it: the real agent, child, ctypes calls and events."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from agent_process import FLOOR, Agent
from seatrial import events
from seatrial.agent import gpu_check, isolation
from seatrial.agent.plan import Gpu
from seatrial.common.agent_plan import AgentPlan
from seatrial.probe import nvml

HERE, OTHER = "de421f490f0c00000000000000000001", "de421f490f0c00000000000000000002"
UUID = {HERE: "GPU-de421f49-0f0c-0000-0000-000000000001", OTHER: "GPU-de421f49-0f0c-0000-0000-000000000002"}

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(nvml.present(), reason="this machine has a real driver"),
]


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
    if "FAKE_CUDA_WRONG" in fake:
        assert agent.events("gpu.kernel")[0]["error"] == "the kernel ran but 256 of 256 results are wrong"


#: A torch for one GPU: FAKE_TORCH is what its matrix product fails with, FAKE_TORCH_S how long its import takes.
TORCH = """
import os, time, types
time.sleep(float(os.environ.get("FAKE_TORCH_S", "0")))
__version__ = "9.9"
version = types.SimpleNamespace(cuda=os.environ.get("FAKE_TORCH_CUDA", "13.0") or None)
cuda = types.SimpleNamespace(get_arch_list=lambda: ["sm_90"], init=lambda: None, device_count=lambda: 1)
if os.environ.get("FAKE_TORCH") == "die": os.kill(os.getpid(), 11)
class Tensor:
    def __getattr__(self, name): return lambda *arguments: self
    def __matmul__(self, other):
        if "FAKE_TORCH" in os.environ: raise RuntimeError(os.environ["FAKE_TORCH"])
        return self
device, arange, equal = (lambda *_: None), (lambda *_: Tensor()), (lambda *_: True)
"""
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
#: A target that would go on for a minute. It prints when it gets SIGTERM.
STAYS = "import signal, sys, time; print('up', flush=True)\n"
STAYS += "signal.signal(signal.SIGTERM, lambda *_: sys.exit('SIGTERM'))\ntime.sleep(60)"

pythons = pytest.mark.parametrize("python", [python for python in (sys.executable, FLOOR) if python])


def with_torch(tmp_path, target="print('done')", torch=TORCH, **plan):
    """An agent whose target's Python, of the plan's argv, finds this torch."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(torch)
    agent = required(tmp_path, HERE, check="torch", env={"PYTHONPATH": str(tmp_path / "site")}, **plan)
    (tmp_path / "target.py").write_text(target)
    return agent


@pythons
def test_a_target_that_ends_first_counts_once_torch_has_passed(tmp_path, driver, python):
    """It never imports torch itself."""
    agent = with_torch(tmp_path, python=python, argv=[python, "target.py"])
    done = run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH_S="1")
    assert done.returncode == 0 and done.stdout == b"done\n", done.stderr
    assert [(kernel["kind"], kernel["ok"]) for kernel in agent.events("gpu.kernel")] == [("driver", 1), ("torch", 1)]
    assert agent.events("gpu.kernel")[1]["torch"] == {"version": "9.9", "cuda": "13.0", "arch_list": ["sm_90"]}
    order = [event["type"] for event in events.read(str(agent.record / "events.jsonl"))[0]]
    torchs = len(order) - 1 - order[::-1].index("gpu.kernel")
    assert order.index("target.started") < torchs < order.index("target.exited")
    waited_s = agent.events("gpu.kernel")[1]["t"] - agent.events("target.started")[0]["t"]
    assert agent.exited()["cause"] == "exited" and agent.exited()["seconds"] < waited_s


@pythons
def test_a_torch_that_fails_stops_the_target(tmp_path, driver, python):
    agent = with_torch(tmp_path, STAYS, python=python, argv=[python, "target.py"])
    began = time.monotonic()
    done = run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH=NO_IMAGE, FAKE_TORCH_S="2")
    assert done.returncode == 3 and time.monotonic() - began < 30
    assert b"up" in done.stdout and b"SIGTERM" in done.stderr and b"has no code for this GPU" in done.stderr, (
        done.stderr
    )
    [finding] = agent.events("finding")
    assert finding["id"] == "no-kernel-image"
    assert (agent.exited()["cause"], agent.exited()["exit_code"]) == ("gpu-contract", None)
    assert agent.events("signal")[0]["origin"] == "agent"
    assert agent.events("agent.finished")[0]["exit_code"] == 3


def test_a_target_that_does_not_listen_is_killed(tmp_path, driver):
    target = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    agent = with_torch(tmp_path, target, grace_s=1.0)
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH=NO_IMAGE, FAKE_TORCH_S="2").returncode == 3
    assert [signal["name"] for signal in agent.events("signal")] == ["SIGTERM", "SIGKILL"]


@pytest.mark.parametrize(
    ("fake", "error", "id"),
    [
        ({"FAKE_TORCH": NO_IMAGE}, NO_IMAGE, "no-kernel-image"),
        ({"FAKE_TORCH": "die"}, "the GPU check failed with exit code -11: no message", "gpus-unusable"),
        ({"FAKE_TORCH_CUDA": ""}, "torch 9.9 is a CPU-only build", "torch-cpu-only"),
    ],
)
def test_what_was_done_with_a_torch_that_fails_is_no_success(tmp_path, driver, fake, error, id):
    """The target itself has ended well by then."""
    agent = with_torch(tmp_path)
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH_S="1", **fake).returncode == 3
    assert agent.events("gpu.kernel")[1]["error"] == error and agent.events("finding")[0]["id"] == id
    assert agent.exited()["cause"] == "gpu-contract"


def test_memory_that_the_target_has_taken_is_no_failure(tmp_path, driver):
    agent = with_torch(tmp_path)
    done = run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH="CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert done.returncode == 0 and [kernel["kind"] for kernel in agent.events("gpu.kernel")] == ["driver"]
    assert "torch's own kernel was not tested" in agent.events("note")[0]["message"]


def test_a_stop_meanwhile_ends_both(tmp_path, driver):
    agent = with_torch(tmp_path, STAYS)
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_GPUS": HERE, "FAKE_TORCH_S": "300"}
    process = subprocess.Popen(agent.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    agent.wait_for_output("up")
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == 1 and agent.exited()["cause"] == "exited"
    assert agent.events("note")[0]["message"] == "the run was stopped before its torch was tested"
    assert isolation.find_run(agent.plan["run_id"]) == []


def test_a_person_who_would_be_typing_is_reported_before(tmp_path, driver):
    agent = with_torch(tmp_path, interactive=True)
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE, FAKE_TORCH=NO_IMAGE).returncode == 3
    assert agent.events("target.started") == [] and agent.events("finding")[0]["id"] == "no-kernel-image"


@pytest.mark.parametrize(("mode", "before"), [(0, False), (None, False), (2, True), (3, True)])
def test_a_gpu_for_one_process_at_a_time_is_tried_before(mode, before):
    gpu = nvml.GpuFact(0, "GPU-1", "A", 1, 0, compute_mode=mode)
    plan = AgentPlan("id", [], "/", "/", gpus=[Gpu("GPU-1", "A")])
    assert gpu_check._before_the_target(plan, nvml.Inventory(None, None, [gpu])) is before


@pytest.mark.torch
def test_a_real_torch_without_cuda_is_named(tmp_path, driver):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    agent = required(tmp_path, HERE, check="torch")
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE).returncode == 3
    assert agent.events("gpu.kernel")[1]["torch"]["version"] == torch.__version__
    assert agent.events("finding")[0]["id"] == "torch-cpu-only"


def test_a_target_without_torch_is_named(tmp_path, driver):
    agent = with_torch(tmp_path, torch="raise ImportError('libc10.so is broken')")
    assert run(agent, driver, FAKE_CUDA_GPUS=HERE).returncode == 3
    assert agent.events("gpu.kernel")[1]["error"] == "torch cannot be imported: ImportError: libc10.so is broken"


def test_a_stop_during_the_checks_ends_before_the_target(tmp_path, driver):
    agent = required(tmp_path, HERE)
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_GPUS": HERE, "FAKE_CUDA_SLEEP_S": "300"}
    process = subprocess.Popen(agent.command, stderr=subprocess.PIPE, env=env)
    agent.wait_for(lambda: agent.events("agent.started"))
    process.terminate()
    assert b"stopped by SIGTERM before the target was started" in process.communicate(timeout=240)[1]
    assert process.returncode == 128 + 15 and agent.events("target.started") == []
    assert agent.events("agent.finished")[0]["exit_code"] == 128 + 15


#: An agent that gets two requests to stop: after the first line of evidence, and while it handles the first request.
STOPPED_TWICE = """
import os, signal, sys
from seatrial.agent import journal, plan, supervisor
write = journal.Journal.write
def stopped_behind(self, event):
    write(self, event)
    if type(event).__name__ in ("AgentStarted", "Signal"):
        os.kill(os.getpid(), signal.SIGTERM)
journal.Journal.write = stopped_behind
run = plan.read(sys.argv[1])
sys.exit(supervisor.supervise(run, journal.Journal(run.evidence_dir), None))
"""


def test_a_stop_behind_the_first_line_of_evidence_ends_the_run_once(tmp_path):
    agent = required(tmp_path, HERE)
    argv = [sys.executable, "-c", STOPPED_TWICE, str(agent.record / "agent.json")]
    done = subprocess.run(argv, capture_output=True, timeout=240)
    assert (done.returncode, b"Traceback" in done.stderr) == (128 + 15, False), done.stderr
    assert agent.events("agent.finished")[0]["exit_code"] == 128 + 15 and agent.events("gpu.check") == []


@pytest.mark.parametrize(("kept", "code"), [("8.0", 3), ("8.0 9.0", 0)])
def test_an_image_cut_down_to_other_gpus_is_refused_by_name(tmp_path, driver, kept, code):
    done = run(required(tmp_path, HERE), driver, FAKE_CUDA_GPUS=HERE, SEATRIAL_ARCHITECTURES=kept)
    assert (done.returncode, b"compute capability 8.0 only" in done.stderr) == (code, code == 3)
