"""What the agent costs: CPU and memory of the built archive beside a target that sleeps, at 1 Hz.

    python benchmarks/agent_overhead.py [seconds] [--python PYTHON] [--archive AGENT.pyz] [--report-hz N] [--context]

CPU is user + system time of the agent process between two looks, so the start is told apart from the steady state.
With a GPU in the machine it is sampled too. Until the target is seen to use it, the agent looks more often than it
samples: a target with ``--context`` holds a CUDA context, as a training does. The agent writes frames to a pipe, as in
a container; an ``--archive`` of another version, for comparison, writes whatever it did. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from seatrial.probe import nvml, processes
from seatrial.system import agent_archive

SETTLE_S = 2.0

#: The target: sleeps, and reports a step now and then; with a third argument it holds a context on the first GPU.
TARGET = """
import ctypes, os, sys, time
hz, end = float(sys.argv[1]), time.time() + float(sys.argv[2])
if len(sys.argv) > 3:
    cuda, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
    while time.time() < end:
        if hz:
            print('{"step": 1, "loss": 0.123456, "images": 64}', file=events, flush=True)
        time.sleep(1 / hz if hz else 1.0)
"""


def measure(python: str, seconds: float, archive: Path | None, report_hz: float, context: bool) -> dict[str, object]:
    """Start the agent on its target and look at it twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "target.py").write_text(TARGET)
        gpus = [gpu for gpu in nvml.inventory().gpus if not gpu.mig_enabled]
        held = ["context"] if context else []
        plan = {
            "run_id": f"benchmark-{time.monotonic_ns()}",
            "argv": [sys.executable, "-I", "-S", "target.py", str(report_hz), str(seconds + SETTLE_S + 30), *held],
            "workdir": name,
            "run_dir": name,
            "gpu_mode": "required" if gpus else "none",
            "check": "driver",
            "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_bytes": 1} for gpu in gpus],
        }
        (folder / "plan.json").write_text(json.dumps({"agent": plan}))
        command = [python, "-I", "-S", str(archive or agent_archive.build(folder)), str(folder / "plan.json")]
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        written = Counter(agent)
        try:
            wait_for_target(agent)
            time.sleep(SETTLE_S)
            before, bytes_before = processes.read(agent.pid), written.bytes
            time.sleep(seconds)
            after = processes.read(agent.pid)
        finally:
            agent.terminate()
            agent.wait()
    assert before is not None and after is not None, "the agent ended early"
    return {
        "archive": str(archive or "this one"),
        "python": python,
        "gpus": len(gpus),
        "report_hz": report_hz,
        "context": context,
        "processes_visible": len(processes.everyone()),
        "start_cpu_s": round(before.cpu_seconds, 3),
        "steady_cpu_pct_of_a_core": round((after.cpu_seconds - before.cpu_seconds) / seconds * 100, 3),
        "rss_mb": round(after.rss_bytes / 1e6, 1),
        "stdout_bytes_per_s": round((written.bytes - bytes_before) / seconds),
    }


class Counter(threading.Thread):
    """Reads a process's stdout, as an engine would, and counts it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._process, self.bytes = process, 0
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        while data := self._process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.bytes += len(data)


def wait_for_target(agent: subprocess.Popen[bytes]) -> None:
    """Until the target runs, or the agent has ended."""
    while agent.poll() is None:
        if any(b"target.py" in processes.command_line(process.pid) for process in processes.descendants(agent.pid)):
            return
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=30.0)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--report-hz", type=float, default=0.0)
    parser.add_argument("--context", action="store_true", help="the target holds a CUDA context")
    given = parser.parse_args()
    print(json.dumps(measure(given.python, given.seconds, given.archive, given.report_hz, given.context)))


if __name__ == "__main__":
    main()
