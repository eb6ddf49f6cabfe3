"""What a sample costs: CPU and wall milliseconds of each part, and of the sampler as it is used, at 1 and 10 Hz.

    python benchmarks/sample_cost.py OUT [--seconds 8] [--strangers 200]

Needs no torch. Takes 4 × --seconds and a few more. With no GPU it measures the container's part alone.
``--strangers`` processes that sleep are started beside, so that /proc is as full as on a machine in use.
Writes OUT/sample_cost.json and OUT/sample_cost.md (printed too). A part that fails is a line, not the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from seatrial.agent.observer import GPM_FIRST_S
from seatrial.probe import container, nvml, processes
from seatrial.probe.container import Cgroup
from seatrial.probe.gpu import Gpm, Gpu
from seatrial.probe.processes import Attribution, Tree
from seatrial.probe.sampler import GPM_INTERVAL_S, Sampler

#: Between two calls of a part: caches go cold as they do between samples. GPM wants more than 0.1 s.
PAUSE_S = 0.03
GPM_PAUSE_S = 0.12

TIMES = 30

#: Calls of NVML and what they are asked; one by one, to find the dear ones. Numbers as in probe/gpu.py.
CALLS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetUtilizationRates": (),
    "nvmlDeviceGetPowerUsage": (),
    "nvmlDeviceGetTemperature": (0,),
    "nvmlDeviceGetClockInfo": (1,),
    "nvmlDeviceGetCurrentClocksEventReasons": (),
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetTotalEnergyConsumption": (),
    "nvmlDeviceGetTotalEccErrors": (0, 0),
}


def cost(call: Callable[[], Any], times: int = TIMES, pause_s: float = PAUSE_S) -> dict[str, float]:
    """Mean CPU of this thread, and median and longest wall time, in milliseconds."""
    cpu_ms, wall_ms = [], []
    for _ in range(times):
        time.sleep(pause_s)
        before_s, before_cpu_s = time.perf_counter(), time.thread_time()
        call()
        cpu_ms.append((time.thread_time() - before_cpu_s) * 1e3)
        wall_ms.append((time.perf_counter() - before_s) * 1e3)
    return {
        "cpu_ms": round(mean(cpu_ms), 4),
        "wall_ms_median": round(median(wall_ms), 4),
        "wall_ms_max": round(max(wall_ms), 4),
        "calls": times,
    }


def container_parts() -> dict[str, Any]:
    """Finding the processes and reading the cgroup."""
    cgroup, tree, attribution = Cgroup(), Tree(os.getpid(), with_root=True), Attribution()
    tree.read()
    attribution.containers()
    return {
        "every process of /proc": cost(lambda: processes.descendants(os.getpid())),
        "the tree, incrementally": cost(tree.read),
        "containers, incrementally": cost(attribution.containers),
        "cgroup: CPU": cost(cgroup.cpu_seconds),
        "cgroup: memory": cost(cgroup.memory_bytes),
        "cgroup: limits": cost(lambda: (cgroup.memory_limit_bytes(), cgroup.cpu_quota_cores())),
        "/dev/shm": cost(container.read),
    }


def gpu_parts(pynvml: Any, uuid: str) -> dict[str, Any]:
    """The readings that a sample is made of, NVML's calls one by one, and GPM taken apart."""
    gpu, handle = Gpu(pynvml, uuid), pynvml.nvmlDeviceGetHandleByUUID(uuid)
    found = {
        "fast values": cost(lambda: gpu.sample(1e9)),
        "counters": cost(gpu.counters, times=8),
        "processes and shares": cost(gpu.processes),
        "exporter's own": cost(gpu.service, times=8),
    }
    for name, arguments in CALLS.items():
        found[name] = cost(lambda name=name, arguments=arguments: nvml.optional(pynvml, name, handle, *arguments), 10)
    reader = Gpm(pynvml, handle)
    if reader.supported:
        found["GPM: sample and comparison"] = cost(lambda: reader.read(0), 20, GPM_PAUSE_S)
        found["GPM: sample"] = cost(reader._take, 20, GPM_PAUSE_S)
        found["GPM: comparison"] = cost(reader._compare, 20, GPM_PAUSE_S)
        found["GPM: comparison in a loop"] = cost(reader._compare, 50, 0.0)
    return found


def in_use(uuids: list[str], rate_hz: float, seconds: float, gpm_interval_s: float) -> dict[str, Any]:
    """The sampler at a rate; CPU by GPU, everything counted that its period brings."""
    sampler = Sampler(uuids, gpm_interval_s=gpm_interval_s)
    sampler.sample()
    began_s = time.monotonic()
    spent = cost(sampler.sample, max(2, round(seconds * rate_hz)), 1 / rate_hz)
    spent["gpus"], spent["gpm_interval_s"] = len(uuids), gpm_interval_s
    spent["cpu_ms_per_gpu"] = round(spent["cpu_ms"] / max(1, len(uuids)), 4)
    spent["pct_of_a_core"] = round(spent["cpu_ms"] * spent["calls"] / (time.monotonic() - began_s) / 10, 3)
    return spent


def attempt(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The part's result, or why there is none."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001  whatever it was, the other parts go on
        return {"why": repr(error)[:300]}


def table(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        f"GPUs: {', '.join(found['gpus']) or 'none'}; {found['processes']} processes; Python {found['python']}",
        "",
        "| part | CPU ms, mean | wall ms, median | wall ms, longest |",
        "| --- | --- | --- | --- |",
    ]
    for group in ("container", "gpu", "in_use"):
        for name, spent in found.get(group, {}).items():
            if not isinstance(spent, dict) or "cpu_ms" not in spent:
                lines.append(f"| {name} | {spent if isinstance(spent, str) else spent.get('why')} | | |")
                continue
            more = f" ({spent['pct_of_a_core']} % of a core)" if "pct_of_a_core" in spent else ""
            numbers = f"{spent['cpu_ms']}{more} | {spent['wall_ms_median']} | {spent['wall_ms_max']}"
            lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--strangers", type=int, default=200)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    inventory = nvml.inventory()
    uuids = [gpu.uuid for gpu in inventory.gpus if not gpu.mig_enabled]
    # Their shell ends at once, so they are inherited by another process and no part of the tree that is measured.
    shell = f"for i in $(seq {options.strangers}); do sleep 120 > /dev/null 2>&1 & done"
    strangers = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
    strangers.wait()
    try:
        found: dict[str, Any] = {
            "gpus": [gpu.name for gpu in inventory.gpus],
            "processes": len(processes.everyone()),
            "python": sys.version.split()[0],
            "container": attempt(container_parts),
        }
        if uuids:
            found["gpu"] = attempt(lambda: gpu_parts(nvml.load(), uuids[0]))
        modes = {
            f"10 Hz, GPM every {GPM_INTERVAL_S:g} s": (10, GPM_INTERVAL_S),
            f"10 Hz, GPM every {GPM_FIRST_S:g} s": (10, GPM_FIRST_S),
            f"1 Hz, GPM every {GPM_FIRST_S:g} s (agent, first minute)": (1, GPM_FIRST_S),
            f"1 Hz, GPM every {GPM_INTERVAL_S:g} s (agent, later)": (1, GPM_INTERVAL_S),
        }
        found["in_use"] = {
            name: attempt(lambda hz=hz, every_s=every_s: in_use(uuids, hz, options.seconds, every_s))
            for name, (hz, every_s) in modes.items()
        }
    finally:
        if options.strangers:
            os.killpg(strangers.pid, signal.SIGTERM)
    (options.out / "sample_cost.json").write_text(json.dumps(found, indent=1))
    (options.out / "sample_cost.md").write_text(table(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
