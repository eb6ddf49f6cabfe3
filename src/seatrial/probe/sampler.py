"""The one sampler: a ``sample`` event's keys, read cheaply. Agent, command line and exporter are views of it."""

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.probe import nvml, proc, shm
from seatrial.probe.cgroup import Cgroup
from seatrial.probe.gpu import Gpu, GpuProcess
from seatrial.probe.xid import XidWatch

#: Reading the energy counter takes 3.4 ms of CPU (measured on an H200, driver 580.159.04); all else, under 1.5 ms.
COUNTER_INTERVAL_S = 30.0


class Sampler:
    """Reads GPUs, and the container (or the tree of processes) around one process.

    Args:
        uuids: GPUs and MIG slices to read; others are never touched.
        pid: the process whose container is measured, or it and its descendants where it has no cgroup of its own.
            Default: this process, itself not counted.
        pynvml: an already chosen module; None loads the real one, and only when there are GPUs to read.

    Attributes:
        error: why no GPU can be read, or None.
        lost: UUIDs that NVML has called lost (fallen off the bus).
        mains: PIDs of the processes that drive the GPUs; the caller adds them as it learns of them.
        failing: UUIDs that were read before and now answer nothing, though NVML does not call them lost.
    """

    def __init__(self, uuids: Sequence[str], pid: Optional[int] = None, pynvml: Any = None) -> None:
        self.uuids = list(uuids)
        self.error: Optional[str] = None
        self.lost: Set[str] = set()
        self.failing: Set[str] = set()
        self.mains: Set[int] = set()
        self._answered: Set[str] = set()
        self._pid = os.getpid() if pid is None else pid
        self._counts_root = pid is not None
        self._cgroup = Cgroup(str(self._pid))
        self._own_cgroup = self._is_own_cgroup()
        self._xids: Optional[XidWatch] = None
        self._gpus = self._open(pynvml) if uuids else {}
        self._counters_due_s = 0.0
        self._container_before = self._container()

    def sample(self) -> Dict[str, Any]:
        """Keys of one ``sample`` event, GPUs in the order asked for.

        Energy and ECC are read every COUNTER_INTERVAL_S and null in between; GPM values cover the time since they were
        last read, and are null in samples taken within gpm.MIN_INTERVAL_S of that.
        """
        with_counters = time.monotonic() >= self._counters_due_s
        if with_counters:
            self._counters_due_s = time.monotonic() + COUNTER_INTERVAL_S
        before, now = self._container_before, self._container()
        self._container_before = now
        memory = shm.read()
        return {
            "gpus": [self._gpu(uuid, with_counters) for uuid in self.uuids],
            "cpu_cores": _rate(before.cpu_seconds, now.cpu_seconds, now.read_s - before.read_s),
            "memory_bytes": now.memory_bytes,
            "memory_limit_bytes": self._cgroup.memory_limit_bytes(),
            "shm_used_bytes": memory.used_bytes if memory else None,
            "shm_total_bytes": memory.total_bytes if memory else None,
            "processes": len(now.tree),
            **self._roles(before, now),
            "cpu_throttled_pct": _throttled(before.cpu_periods, now.cpu_periods),
            "cpu_quota_cores": self._cgroup.cpu_quota_cores(),
        }

    def energy_j(self) -> Dict[str, Optional[float]]:
        """UUID → joules since the driver loaded, read now; None where there is no such counter."""
        return {uuid: self._read(uuid, lambda gpu: gpu.energy_j()) for uuid in self.uuids}

    def compute_processes(self, uuid: str) -> Optional[List[nvml.ComputeProcess]]:
        """Processes with a CUDA context on the GPU, or None when NVML does not tell."""
        processes = self._read(uuid, lambda gpu: gpu.compute_processes())
        return None if processes is None else list(processes)

    def processes(self, uuid: str) -> Optional[List[GpuProcess]]:
        """The same with each one's share of the SMs since the last call."""
        processes = self._read(uuid, lambda gpu: gpu.processes())
        return None if processes is None else list(processes)

    def service(self, uuid: str) -> Dict[str, Any]:
        """Gpu.service, or {} when the GPU cannot be read."""
        return self._read(uuid, lambda gpu: gpu.service()) or {}

    def xids(self) -> Dict[str, List[int]]:
        """UUID → Xid errors since the last call (and, the first time, since this sampler was made)."""
        return self._xids.new() if self._xids else {}

    def _open(self, pynvml: Any) -> Dict[str, Gpu]:
        gpus: Dict[str, Gpu] = {}
        try:
            pynvml = nvml.initialised(pynvml) if pynvml is not None else nvml.load()
        except nvml.NvmlError as error:
            self.error = str(error)
            return gpus
        for uuid in self.uuids:
            try:
                gpus[uuid] = Gpu(pynvml, uuid)
            except pynvml.NVMLError as error:
                self.error = "NVML cannot open %s: %s" % (uuid, error)
        self._xids = XidWatch(pynvml, list(gpus))
        return gpus

    def _read(self, uuid: str, reading: Any) -> Any:
        gpu = self._gpus.get(uuid)
        if gpu is None or uuid in self.lost:
            return None
        try:
            return reading(gpu)
        except gpu.nvml.NVMLError:  # Gpu lets only one through: the GPU is lost
            self.lost.add(uuid)
            return None

    def _gpu(self, uuid: str, with_counters: bool) -> Dict[str, Any]:
        values = self._read(uuid, lambda gpu: dict(gpu.sample(), **(gpu.counters() if with_counters else {}))) or {}
        if any(value is not None for value in values.values()):
            self._answered.add(uuid)
            self.failing.discard(uuid)
        elif uuid in self._answered and uuid not in self.lost:
            self.failing.add(uuid)
        return {key: uuid if key == "uuid" else values.get(key) for key in GPU_SAMPLE_KEYS}

    def _is_own_cgroup(self) -> bool:
        """Whether the cgroup holds nobody but us: a container's. A login session's is shared with strangers."""
        members = set(self._cgroup.processes())
        ours = {process.pid for process in proc.descendants(self._pid)} | {self._pid, 1}
        return bool(members) and members <= ours

    def _container(self) -> "_Container":
        root = proc.read(self._pid) if self._counts_root else None
        tree = proc.descendants(self._pid)
        tree = [root, *tree] if root else tree
        own = self._own_cgroup
        cpu_seconds = self._cgroup.cpu_seconds() if own else None
        memory_bytes = self._cgroup.memory_bytes() if own else None
        return _Container(
            read_s=time.monotonic(),
            cpu_seconds=sum(process.cpu_seconds for process in tree) if cpu_seconds is None else cpu_seconds,
            memory_bytes=sum(process.rss_bytes for process in tree) if memory_bytes is None else memory_bytes,
            tree={process.pid: process for process in tree},
            cpu_periods=self._cgroup.cpu_periods() if own else None,
        )

    def _roles(self, before: "_Container", now: "_Container") -> Dict[str, Any]:
        """CPU of those who drive the GPUs, and of those who work for them (data loaders)."""
        mains = self.mains & set(now.tree) or set(list(now.tree)[:1])
        used_s = {"main": 0.0, "worker": 0.0}
        for pid, process in now.tree.items():
            earlier = before.tree.get(pid)
            reused = earlier is not None and earlier.started_ticks != process.started_ticks
            since_s = earlier.cpu_seconds if earlier is not None and not reused else 0.0
            used_s["main" if pid in mains else "worker"] += max(0.0, process.cpu_seconds - since_s)
        passed_s = now.read_s - before.read_s
        return {
            "main_cpu_cores": _rate(0.0, used_s["main"], passed_s),
            "worker_cpu_cores": _rate(0.0, used_s["worker"], passed_s),
            "workers": len(now.tree) - len(mains),
        }


class _Container(NamedTuple):
    """What was read at one moment: CPU time and memory of the whole, and every process in it."""

    read_s: float
    cpu_seconds: float
    memory_bytes: int
    tree: Dict[int, proc.Process]
    cpu_periods: Optional[Tuple[int, int]]


def _rate(before_s: float, now_s: float, passed_s: float) -> float:
    """Cores in use. Never negative: CPU time of ended processes leaves a tree's sum."""
    return round(max(0.0, now_s - before_s) / max(passed_s, 1e-3), 3)


def _throttled(before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]) -> Optional[float]:
    """Share of the periods in between, in percent; None without a quota, and 0 where none has passed."""
    if before is None or now is None:
        return None
    periods, throttled = now[0] - before[0], now[1] - before[1]
    return round(100.0 * throttled / periods, 1) if periods > 0 else 0.0
