"""The one sampler: a ``sample`` event's keys, read cheaply. Agent, command line and exporter are views of it."""

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, TypeVar

from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.probe import nvml
from seatrial.probe.container import ContainerUsage
from seatrial.probe.gpu import Gpu, XidWatch

T = TypeVar("T")
#: Reading energy and ECC takes 5.8 ms of CPU (measured on an H200, driver 580.159.04: benchmarks/sample_cost.py).
COUNTER_INTERVAL_S = 30.0
#: Comparing GPM samples takes 2.1 to 2.8 ms of CPU there, however many metrics; the other samples take 0.2 ms.
GPM_INTERVAL_S = 5.0


class Sampler:
    """Reads GPUs, and the container (or the tree of processes) around one process.

    Args:
        uuids: GPUs and MIG slices to read; others are never touched.
        pid: the process whose container is measured, or it and its descendants where it has no cgroup of its own.
            Default: this process, itself not counted.
        pynvml: an already chosen module; None loads the real one, and only when there are GPUs to read.
        gpm_interval_s: GPM values are means over this time, and stay for as long; may be changed at any time.

    ``error``: why no GPU can be read, or None. ``lost``: UUIDs that NVML has called lost (fallen off the bus).
    ``failing``: UUIDs that were read before and now answer nothing, though NVML does not call them lost.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        pid: Optional[int] = None,
        pynvml: Any = None,
        gpm_interval_s: float = GPM_INTERVAL_S,
    ) -> None:
        self.uuids = list(uuids)
        self.gpm_interval_s = gpm_interval_s
        self.error: Optional[str] = None
        self.lost: Set[str] = set()
        self.failing: Set[str] = set()
        self._answered: Set[str] = set()
        self._container = ContainerUsage(pid)
        self._xids: Optional[XidWatch] = None
        self._gpus = self._open(pynvml) if uuids else {}
        self._counters_due_s = 0.0

    @property
    def mains(self) -> Set[int]:
        """Return the PIDs of the processes that drive the GPUs; the caller adds them as it learns of them."""
        return self._container.mains

    def sample(self) -> Dict[str, Any]:
        """Return the keys of one ``sample`` event, GPUs in the given order.

        Energy and ECC are read every COUNTER_INTERVAL_S, and null in between. GPM values are as old as gpm_interval_s;
        temperature, clocks, throttling and the container's as a second. All else is read each time.
        """
        with_counters = time.monotonic() >= self._counters_due_s
        if with_counters:
            self._counters_due_s = time.monotonic() + COUNTER_INTERVAL_S
        return {"gpus": [self._gpu(uuid, with_counters) for uuid in self.uuids], **self._container.read()}

    def energy_j(self) -> Dict[str, Optional[float]]:
        """Return UUID → joules since the driver loaded, read now; None without such a counter."""
        return {uuid: self._read(uuid, Gpu.energy_j) for uuid in self.uuids}

    def compute_processes(self, uuid: str) -> Optional[List[nvml.ComputeProcess]]:
        """Return the processes with a CUDA context on the GPU, or None if NVML does not list them."""
        return self._read(uuid, Gpu.compute_processes)

    def processes(self, uuid: str) -> Optional[List[nvml.ComputeProcess]]:
        """Return the same with each one's share of the SMs since the last call."""
        return self._read(uuid, Gpu.processes)

    def service(self, uuid: str) -> Dict[str, Any]:
        """Return the GPU's ``service`` keys, or {} if it cannot be read."""
        return self._read(uuid, Gpu.service) or {}

    def xids(self) -> Dict[str, List[int]]:
        """Return UUID → Xid errors since the last call (and, the first time, since this sampler was made)."""
        return self._xids.new() if self._xids else {}

    def close(self) -> None:
        """Release all that NVML holds for us; the sampler is not to be used any more."""
        for gpu in self._gpus.values():
            gpu.close()
        if self._xids is not None:
            self._xids.close()

    def _open(self, pynvml: Any) -> Dict[str, Gpu]:
        gpus: Dict[str, Gpu] = {}
        try:
            pynvml = nvml.load(pynvml)
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

    def _read(self, uuid: str, reading: Callable[[Gpu], Optional[T]]) -> Optional[T]:
        gpu = self._gpus.get(uuid)
        if gpu is None or uuid in self.lost:
            return None
        try:
            return reading(gpu)
        except gpu.nvml.NVMLError:  # Gpu lets only one through: the GPU is lost
            self.lost.add(uuid)
            return None

    def _gpu(self, uuid: str, with_counters: bool) -> Dict[str, Any]:
        values = self._read(uuid, lambda gpu: gpu.sample(self.gpm_interval_s)) or {}
        if with_counters:
            values.update(self._read(uuid, Gpu.counters) or {})
        if any(value is not None for value in values.values()):
            self._answered.add(uuid)
            self.failing.discard(uuid)
        elif uuid in self._answered and uuid not in self.lost:
            self.failing.add(uuid)
        return {key: uuid if key == "uuid" else values.get(key) for key in GPU_SAMPLE_KEYS}
