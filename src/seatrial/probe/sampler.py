"""The one sampler: a ``sample`` event's keys, read cheaply. Agent, command line and exporter are views of it."""

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Set

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
        failing: UUIDs that were read before and now answer nothing, though NVML does not call them lost.
    """

    def __init__(self, uuids: Sequence[str], pid: Optional[int] = None, pynvml: Any = None) -> None:
        self.uuids = list(uuids)
        self.error: Optional[str] = None
        self.lost: Set[str] = set()
        self.failing: Set[str] = set()
        self._answered: Set[str] = set()
        self._pid = os.getpid() if pid is None else pid
        self._counts_root = pid is not None
        self._cgroup = Cgroup(str(self._pid))
        self._own_cgroup = self._is_own_cgroup()
        self._xids: Optional[XidWatch] = None
        self._gpus = self._open(pynvml) if uuids else {}
        self._counters_due_s = 0.0
        self._cpu_seconds, self._cpu_read_s = self._container()["cpu_seconds"], time.monotonic()

    def sample(self) -> Dict[str, Any]:
        """Keys of one ``sample`` event, GPUs in the order asked for.

        Energy and ECC are read every COUNTER_INTERVAL_S and null in between; GPM values cover the time since they were
        last read, and are null in samples taken within gpm.MIN_INTERVAL_S of that.
        """
        with_counters = time.monotonic() >= self._counters_due_s
        if with_counters:
            self._counters_due_s = time.monotonic() + COUNTER_INTERVAL_S
        container = self._container()
        memory = shm.read()
        return {
            "gpus": [self._gpu(uuid, with_counters) for uuid in self.uuids],
            "cpu_cores": self._cores(container["cpu_seconds"]),
            "memory_bytes": container["memory_bytes"],
            "memory_limit_bytes": self._cgroup.memory_limit_bytes(),
            "shm_used_bytes": memory.used_bytes if memory else None,
            "shm_total_bytes": memory.total_bytes if memory else None,
            "processes": container["processes"],
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

    def _container(self) -> Dict[str, Any]:
        root = proc.read(self._pid) if self._counts_root else None
        tree = proc.descendants(self._pid) + ([root] if root else [])
        own = self._own_cgroup
        cpu_seconds = self._cgroup.cpu_seconds() if own else None
        memory_bytes = self._cgroup.memory_bytes() if own else None
        if cpu_seconds is None:
            cpu_seconds = sum(process.cpu_seconds for process in tree)
        if memory_bytes is None:
            memory_bytes = sum(process.rss_bytes for process in tree)
        return {"cpu_seconds": cpu_seconds, "memory_bytes": memory_bytes, "processes": len(tree)}

    def _cores(self, cpu_seconds: float) -> float:
        """Cores in use since the last call. Never negative: CPU time of ended processes leaves a tree's sum."""
        now_s = time.monotonic()
        used, passed_s = cpu_seconds - self._cpu_seconds, max(now_s - self._cpu_read_s, 1e-3)
        self._cpu_seconds, self._cpu_read_s = cpu_seconds, now_s
        return float(round(max(0.0, used / passed_s), 3))
