"""Between two trials on a GPU nothing of the first may be left: whose processes still have a context there, by NVML."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from seatrial.job.plan import Gpu
from seatrial.job.units import format_bytes
from seatrial.probe.nvml import ComputeProcess, NvmlError, compute_processes
from seatrial.runs.run import Run

#: The driver frees a killed process's memory within so long; what is there later is left behind.
_WAIT_S = 10.0
_INTERVAL_S = 0.25


def leftover_processes(run: Run, gpus: Sequence[Gpu], hurry: threading.Event) -> str | None:
    """What an ended run has left on its GPUs, in words with the command that shows it; None: nothing.

    Args:
        hurry: set: do not wait for the driver.
    """
    deadline = time.monotonic() + _WAIT_S
    while found := [(gpu, process) for gpu in gpus for process in _listed(gpu.uuid) if _belongs(process.pid, run)]:
        if time.monotonic() >= deadline or hurry.is_set():
            gpu, process = found[0]
            held = f" with {format_bytes(process.memory_bytes)}" if process.memory_bytes else ""
            who = f"process {process.pid} of the ended run is still on GPU {gpu.mig or gpu.index}{held}"
            return f"{who}; see nvidia-smi, then kill {process.pid}"
        hurry.wait(_INTERVAL_S)
    return None


def _belongs(pid: int, run: Run) -> bool:
    """By its container's ID in its cgroup, or by the run's ID in its environment, which a process of ours inherits."""
    handle = run.handle()
    for name in ("cgroup", "environ"):
        try:
            told = Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if run.id.encode() in told or (handle is not None and len(handle.id) == 64 and os.fsencode(handle.id) in told):
            return True
    return False


def _listed(uuid: str) -> list[ComputeProcess]:
    try:
        return compute_processes(uuid)
    except NvmlError:
        return []
