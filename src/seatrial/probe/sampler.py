"""The one sampler: a ``sample`` event's keys, read cheaply. Agent, command line and exporter are views of it."""

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.probe import nvml, proc, shm
from seatrial.probe.cgroup import Cgroup
from seatrial.probe.gpm import Gpm

#: Reading the energy counter takes 3.4 ms of CPU (measured on an H200, driver 580.159.04); all else, under 1.5 ms.
ENERGY_INTERVAL_S = 30.0

#: NVML's clock event reasons that hold a GPU back; idling (bit 0) does not. Source: nvml.h, nvmlClocksEventReasons.
THROTTLE_REASONS = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}

_TEMPERATURE_GPU = 0  # nvml.h: NVML_TEMPERATURE_GPU
_CLOCK_SM = 1  # nvml.h: NVML_CLOCK_SM


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
    """

    def __init__(self, uuids: Sequence[str], pid: Optional[int] = None, pynvml: Any = None) -> None:
        self.uuids = list(uuids)
        self.error: Optional[str] = None
        self.lost: Set[str] = set()
        self._pid = os.getpid() if pid is None else pid
        self._counts_root = pid is not None
        self._cgroup = Cgroup(str(self._pid))
        self._own_cgroup = self._is_own_cgroup()
        self._gpus = self._open(pynvml) if uuids else {}
        self._energy_due_s = 0.0
        self._cpu_seconds, self._cpu_read_s = self._container()["cpu_seconds"], time.monotonic()

    def sample(self) -> Dict[str, Any]:
        """Keys of one ``sample`` event, GPUs in the order asked for.

        ``energy_j`` is read every ENERGY_INTERVAL_S and null in between; GPM values cover the time since the last
        sample and are null in one taken too soon after it.
        """
        with_energy = time.monotonic() >= self._energy_due_s
        if with_energy:
            self._energy_due_s = time.monotonic() + ENERGY_INTERVAL_S
        container = self._container()
        memory = shm.read()
        return {
            "gpus": [self._gpu(uuid, with_energy) for uuid in self.uuids],
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

    def _open(self, pynvml: Any) -> Dict[str, "_Gpu"]:
        gpus: Dict[str, _Gpu] = {}
        try:
            pynvml = nvml.initialised(pynvml) if pynvml is not None else nvml.load()
        except nvml.NvmlError as error:
            self.error = str(error)
            return gpus
        for uuid in self.uuids:
            try:
                gpus[uuid] = _Gpu(pynvml, uuid)
            except pynvml.NVMLError as error:
                self.error = "NVML cannot open %s: %s" % (uuid, error)
        return gpus

    def _read(self, uuid: str, reading: Any) -> Any:
        gpu = self._gpus.get(uuid)
        if gpu is None or uuid in self.lost:
            return None
        try:
            return reading(gpu)
        except gpu.nvml.NVMLError:  # _Gpu lets only one through: the GPU is lost
            self.lost.add(uuid)
            return None

    def _gpu(self, uuid: str, with_energy: bool) -> Dict[str, Any]:
        values = self._read(uuid, lambda gpu: gpu.sample(with_energy)) or {}
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


class _Gpu:
    """One GPU or slice with its handle kept. Every method raises NVMLError when the GPU is lost, and only then."""

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self.nvml = pynvml
        self._handle = nvml.gpu_handle(pynvml, uuid)
        self._gpm = Gpm(pynvml, self._handle)

    def sample(self, with_energy: bool) -> Dict[str, Any]:
        utilization = self._value("nvmlDeviceGetUtilizationRates")
        memory = self._value("nvmlDeviceGetMemoryInfo")
        power_mw = self._value("nvmlDeviceGetPowerUsage")
        values = {
            "utilization_pct": float(utilization.gpu) if utilization else None,
            "memory_used_bytes": memory.used if memory else None,
            "memory_total_bytes": memory.total if memory else None,
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "energy_j": self.energy_j() if with_energy else None,
            "temperature_c": self._value("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "sm_clock_mhz": self._value("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "throttle_reasons": self._throttle_reasons(),
        }
        values.update(self._gpm.read())
        return values

    def energy_j(self) -> Optional[float]:
        energy_mj = self._value("nvmlDeviceGetTotalEnergyConsumption")
        return energy_mj / 1000 if energy_mj is not None else None

    def compute_processes(self) -> Optional[List[nvml.ComputeProcess]]:
        processes = self._value("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else [nvml.ComputeProcess(p.pid, p.usedGpuMemory) for p in processes]

    def _throttle_reasons(self) -> Optional[List[str]]:
        bits = self._value("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 know it by its old name
            bits = self._value("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else [name for bit, name in THROTTLE_REASONS.items() if bits & bit]

    def _value(self, function: str, *arguments: Any) -> Any:
        return nvml.optional(self.nvml, function, self._handle, *arguments)
