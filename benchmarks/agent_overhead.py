"""What the agent costs: CPU and memory of the built archive beside a target that sleeps, at 1 Hz.

    python benchmarks/agent_overhead.py [seconds] [python ...]

CPU is user + system time of the agent process between two looks, so the start is told apart from the steady state.
With a GPU in the machine it is sampled too. Prints one JSON object for each interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seatrial.probe import nvml, proc
from seatrial.system import agent_archive

SETTLE_S = 2.0


def measure(python: str, seconds: float) -> dict[str, object]:
    """Start the agent on a sleeping target and look at it twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpus = [gpu for gpu in nvml.inventory().gpus if not gpu.mig_enabled]
        plan = {
            "run_id": f"benchmark-{time.monotonic_ns()}",
            "argv": ["sleep", str(seconds + SETTLE_S + 30)],
            "workdir": name,
            "run_dir": name,
            "gpu_mode": "required" if gpus else "none",
            "check": "driver",
            "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_bytes": 1} for gpu in gpus],
        }
        (folder / "plan.json").write_text(json.dumps({"agent": plan}))
        command = [python, "-I", "-S", str(agent_archive.build(folder)), str(folder / "plan.json")]
        agent = subprocess.Popen(command)
        try:
            wait_for_target(agent, folder / "events.jsonl")
            time.sleep(SETTLE_S)
            before = proc.read(agent.pid)
            time.sleep(seconds)
            after = proc.read(agent.pid)
        finally:
            agent.terminate()
            agent.wait()
    assert before is not None and after is not None, "the agent ended early"
    return {
        "python": python,
        "gpus": len(gpus),
        "processes_visible": len(proc.everyone()),
        "start_cpu_s": round(before.cpu_seconds, 3),
        "steady_cpu_pct_of_a_core": round((after.cpu_seconds - before.cpu_seconds) / seconds * 100, 3),
        "rss_mb": round(after.rss_bytes / 1e6, 1),
    }


def wait_for_target(agent: subprocess.Popen[bytes], events: Path) -> None:
    """Until the target runs, or the agent has ended."""
    while agent.poll() is None and not (events.exists() and b'"target.started"' in events.read_bytes()):
        time.sleep(0.05)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    for python in sys.argv[2:] or [sys.executable]:
        print(json.dumps(measure(python, seconds)))


if __name__ == "__main__":
    main()
