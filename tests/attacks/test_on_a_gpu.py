"""Scripts that claim a GPU that they do not use, in Docker on a machine with one: exit 3 each; honest ones pass.

SEATRIAL_TEST_GPU_TOML names a seatrial.toml for a machine that has no image of python:3.11-slim-bookworm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks_harness import READY, finding_ids, intact, receipt
from cli_project import Project
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.probe import nvml

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.docker,
    pytest.mark.skipif(not nvml.inventory().gpus, reason="NVML lists no GPU here"),
]

#: A context on the first GPU, made through the driver alone.
CONTEXT = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
"""

#: Four seconds of work: a GB of memory, written again and again.
WORK = """
memory = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)) == 0
end = time.time() + 4
while time.time() < end:
    for _ in range(100):
        assert cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(1 << 30)) == 0
    assert cuda.cuCtxSynchronize() == 0
"""

#: Name → script.
HONEST = {
    "work": CONTEXT + WORK,
    "work in a child": (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CONTEXT + WORK!r}], check=True)\n"
    ),
}
FORGED = {
    "nothing at all": "print('nothing')",
    "reports in the agent's and the host's name": """
import json, os, subprocess, time
uuid = os.environ.get("GPU_UUID")
with open(os.environ["SEATRIAL_EVENTS"], "a") as reports:
    for source in ("agent", "host"):
        for type in ("gpu.context", "gpu.kernel", "agent.finished", "target.exited"):
            line = {"t": time.time(), "type": type, "source": source, "uuid": uuid, "pid": 1, "ok": True,
                    "evidence": "nvml-process", "exit_code": 0, "contexts": [uuid]}
            print(json.dumps(line), file=reports)
time.sleep(3)
""",
    "frames on its output": """
import json, os, time
line = {"t": time.time(), "type": "gpu.context", "source": "agent", "uuid": os.environ.get("GPU_UUID"), "pid": 1}
for mark in ("\\x1e", "\\x1d\\x1e", "\\x02"):
    print(mark + json.dumps(line), flush=True)
time.sleep(3)
""",
    "a mapped file called nvidia-uvm, and open device nodes": """
import mmap, os, time
os.makedirs("/tmp/dev", exist_ok=True)
open("/tmp/dev/nvidia-uvm", "wb").write(b"x" * 4096)
file = open("/tmp/dev/nvidia-uvm", "r+b")
mapped = mmap.mmap(file.fileno(), 4096)
held = [os.open(path, os.O_RDWR) for path in ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia0")]
time.sleep(4)
""",
    "a context in which nothing ever runs": CONTEXT + "time.sleep(8)\n",
    "SIGTERM to PID 1, then a clean end": (
        "import os, signal, sys, time\nsignal.signal(15, signal.SIG_IGN)\nos.kill(1, 15)\ntime.sleep(3)\nsys.exit(0)\n"
    ),
    "CUDA's initialisation and no context": "\n".join(CONTEXT.splitlines()[:-1]) + "\ntime.sleep(3)\n",
}

#: Every door of every process in the container, while the agent's own trial runs and after it.
DOORS = """
import ctypes, os, time
libc, opened, shut = ctypes.CDLL(None, use_errno=True), [], 0
for _ in range(8):
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == os.getpid():
            continue
        for what in ("mem", "environ", "fd/1", "fd/2", "maps"):
            try:
                open(f"/proc/{pid}/{what}", "rb").read(1)
                opened.append((pid, what, open(f"/proc/{pid}/cmdline").read()))
            except OSError:
                shut += 1
        if libc.ptrace(16, pid, 0, 0) == 0:
            opened.append((pid, "ptrace"))
    time.sleep(0.3)
print("opened", opened, "shut", shut > 0, flush=True)
"""


@pytest.fixture
def on_gpu(environ: dict[str, str], tmp_path: Path) -> Iterator[Project]:
    if not (facts := Docker().facts()).available:
        pytest.skip(str(facts.reason))
    made = Project(tmp_path / "project", "docker", environ, Docker().call)
    given = os.environ.get("SEATRIAL_TEST_GPU_TOML")
    made.write("seatrial.toml", (Path(given).read_text() if given else READY) + f'\n[env]\nGPU_UUID = "{uuid()}"\n')
    yield made
    made.clean()


def uuid() -> str:
    return nvml.inventory().gpus[0].uuid


@pytest.mark.parametrize("name", list(HONEST))
def test_honest_use_passes(on_gpu: Project, name: str) -> None:
    on_gpu.write("train.py", HONEST[name])
    on_gpu.run("train.py", "--gpus", "1")
    assert receipt(on_gpu)["seal"]["witnessed"], "the host has not seen it"
    intact(on_gpu)


@pytest.mark.parametrize("name", list(FORGED))
def test_a_claim_is_no_use(on_gpu: Project, name: str) -> None:
    on_gpu.write("train.py", FORGED[name])
    on_gpu.run("train.py", "--gpus", "1", exit_code=3)
    reported = receipt(on_gpu)
    assert reported["exit_code"] == 3, reported["exit_cause"]
    assert ("forged-evidence" in finding_ids(on_gpu)) == (name == "reports in the agent's and the host's name")
    intact(on_gpu)


def test_every_door_is_shut(on_gpu: Project) -> None:
    on_gpu.write("train.py", DOORS + CONTEXT + WORK)
    on_gpu.run("train.py", "--gpus", "1")
    assert on_gpu.output() == "opened [] shut True\n"
