"""The watchdog: looks at every sample and tells, once each, what will end the run badly or wastes it."""

import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from seatrial.agent.activity import Activity
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.probe import proc
from seatrial.probe.sampler import Sampler

#: Memory this full ends the run soon. torch's allocator keeps what it once had, so less would warn of nothing.
GPU_MEMORY_FULL = 0.97
HOST_MEMORY_FULL = 0.95
SHARED_MEMORY_FULL = 0.90

#: A slowdown shorter than this is a spike; the power cap is told later, it is only worth knowing.
SLOWED_S = 10.0
CAPPED_S = 60.0
_SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")

#: Below this tensor and DRAM activity nothing is computed. A hung NCCL kernel spins at 100 % utilisation and reads
#: flags only; an H200 with a context and no kernel reads 0.0 %.
QUIET_PCT = 1.0
#: Without GPUs, or before Hopper: this little CPU, or no utilisation.
QUIET_CORES = 0.05

#: Xids that the program itself causes. Source: https://docs.nvidia.com/deploy/xid-errors/
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45})

#: How often dead processes are looked for.
_ZOMBIES_EVERY_S = 10.0

Tell = Callable[[Finding], None]


class Watchdog:
    """Call ``look`` after each sample.

    Args:
        activity: output and reports of the target. hang_after_s: None: hangs are not looked for.
        tell: gets each finding, once for each GPU.
    """

    def __init__(self, sampler: Sampler, activity: Activity, hang_after_s: Optional[float], tell: Tell) -> None:
        self._sampler, self._tell, self._hang_after_s = sampler, tell, hang_after_s
        self._activity = activity
        self._told: Set[Tuple[str, str]] = set()
        self._since_s: Dict[Tuple[str, str], float] = {}
        self._worked = False
        self._quiet_since_s: Optional[float] = None
        self._zombies_due_s = 0.0
        self._dead: Set[Tuple[str, int]] = set()

    def look(self, sample: Dict[str, Any], now_s: Optional[float] = None) -> None:
        """Judge one ``sample`` event's keys. ``now_s`` is a monotonic clock."""
        now_s = time.monotonic() if now_s is None else now_s
        for uuid, numbers in self._sampler.xids().items():
            self._xid(uuid, numbers)
        for uuid in sorted(self._sampler.lost):
            self._once("gpu-lost", uuid, "NVML says that %s is lost" % uuid)
        for uuid in sorted(self._sampler.failing):
            self._once("device-access-lost", uuid, "%s no longer responds to NVML" % uuid)
        for gpu in sample["gpus"]:
            self._gpu(gpu, now_s)
        self._shares(sample)
        self._hang(sample, now_s)
        if now_s >= self._zombies_due_s:
            self._zombies_due_s = now_s + _ZOMBIES_EVERY_S
            self._zombies()

    def _xid(self, uuid: str, numbers: List[int]) -> None:
        for number in sorted(set(numbers)):
            severity = "warning" if number in XIDS_OF_PROGRAMS else "error"
            self._once("gpu-xid", "%s %d" % (uuid, number), "Xid %d on %s" % (number, uuid), severity)

    def _gpu(self, gpu: Dict[str, Any], now_s: float) -> None:
        uuid, reasons = gpu["uuid"], gpu["throttle_reasons"] or []
        slowed = [reason for reason in reasons if reason in _SLOWDOWNS]
        if self._lasts("slowed", uuid, bool(slowed), SLOWED_S, now_s):
            evidence = "%s for %.0f s on %s, %s °C" % (", ".join(slowed), SLOWED_S, uuid, gpu["temperature_c"])
            self._once("gpu-slowed-down", uuid, evidence)
        if self._lasts("capped", uuid, "sw_power_cap" in reasons, CAPPED_S, now_s):
            self._once("gpu-power-capped", uuid, "%s W for %.0f s on %s" % (gpu["power_w"], CAPPED_S, uuid))
        share = _share(gpu["memory_used_bytes"], gpu["memory_total_bytes"])
        if share >= GPU_MEMORY_FULL:
            self._once("gpu-memory-nearly-full", uuid, "%.0f %% in use on %s" % (100 * share, uuid))

    def _shares(self, sample: Dict[str, Any]) -> None:
        host = _share(sample["memory_bytes"], sample["memory_limit_bytes"])
        if host >= HOST_MEMORY_FULL:
            self._once("host-memory-nearly-full", "", "%.0f %% of the limit in use" % (100 * host))
        shared = _share(sample["shm_used_bytes"], sample["shm_total_bytes"])
        if shared >= SHARED_MEMORY_FULL:
            self._once("shared-memory-nearly-full", "", "%.0f %% of /dev/shm in use" % (100 * shared))

    def _hang(self, sample: Dict[str, Any], now_s: float) -> None:
        """Silence alone is no hang: a first download or compilation is silent too, so it must have worked before."""
        told = self._activity.new()
        quiet = _quiet(sample)
        self._worked = self._worked or not quiet
        if self._hang_after_s is None or told or not quiet or not self._worked:
            self._quiet_since_s = None
            return
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._hang_after_s:
            spins = ["%.0f" % gpu["utilization_pct"] for gpu in sample["gpus"] if gpu["utilization_pct"] is not None]
            spinning = ", utilisation %s %%" % ", ".join(spins) if spins else ""
            evidence = "no step, no output and no GPU work for %.0f s%s" % (self._hang_after_s, spinning)
            self._once("hang", "", evidence)

    def _zombies(self) -> None:
        """Dead at two looks: every process that ends is dead for the moment that the driver takes it apart in."""
        before, self._dead = self._dead, set()
        for uuid in self._sampler.uuids:
            for listed in self._sampler.compute_processes(uuid) or []:
                process = proc.read(listed.pid)
                if process is None or process.state != "Z" or not listed.memory_bytes:
                    continue
                self._dead.add((uuid, listed.pid))
                if (uuid, listed.pid) in before:
                    evidence = "PID %d holds %d bytes on %s" % (listed.pid, listed.memory_bytes, uuid)
                    self._once("zombie-holds-gpu-memory", "%s %d" % (uuid, listed.pid), evidence)

    def _lasts(self, what: str, uuid: str, holds: bool, seconds: float, now_s: float) -> bool:
        """Whether it has held without a break for so long."""
        if not holds:
            self._since_s.pop((what, uuid), None)
            return False
        return now_s - self._since_s.setdefault((what, uuid), now_s) >= seconds

    def _once(self, id: str, about: str, evidence: str, severity: Optional[str] = None) -> None:
        if (id, about) in self._told:
            return
        self._told.add((id, about))
        self._tell(by_id(id).finding([evidence], severity=severity))


def _quiet(sample: Dict[str, Any]) -> bool:
    """Whether nothing is computed: by GPM where it is, else by utilisation, else by the CPU."""
    if not sample["gpus"]:
        return bool(sample["cpu_cores"] < QUIET_CORES)
    for gpu in sample["gpus"]:
        fine = [gpu[key] for key in ("tensor_activity_pct", "fp32_activity_pct", "dram_activity_pct")]
        known = [value for value in fine if value is not None]
        if known and max(known) >= QUIET_PCT:
            return False
        if not known and (gpu["utilization_pct"] or 0.0) > 0:
            return False
    return True


def _share(part: Optional[int], whole: Optional[int]) -> float:
    return part / whole if part is not None and whole else 0.0
