"""Sample GPUs and the container in a thread of its own, and report hangs, first contexts and Xid errors."""

import json
import os
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from seatrial.agent.journal import Journal
from seatrial.agent.output import Activity, TargetReports
from seatrial.agent.plan import Gpu
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import GpuContext, Sample
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.probe import processes
from seatrial.probe.sampler import GPM_INTERVAL_S, Sampler

#: A run with GPU memory this full ends soon. torch's allocator keeps what it ever had: less would warn of nothing.
GPU_MEMORY_FULL = 0.97
HOST_MEMORY_FULL = 0.95
SHARED_MEMORY_FULL = 0.90
#: A slowdown shorter than this is a spike; the power cap is reported later: it is for information.
SLOWED_S = 10.0
CAPPED_S = 60.0
_SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
#: Below this tensor and DRAM activity nothing is computed. A hung NCCL kernel spins at 100 % utilisation and reads
#: flags only; an H200 with a context and no kernel reads 0.0 %.
QUIET_PCT = 1.0
#: A target below this many cores computes nothing. Used without GPUs, and before Hopper without utilisation.
QUIET_CORES = 0.05
#: Xids that the program itself causes. Source: https://docs.nvidia.com/deploy/xid-errors/
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45})
#: A process that is ready and has no CPU for this share of these seconds shares its machine, or has too many workers.
STARVED_SHARE, STARVED_S = 0.5, 10.0
#: Interval between searches for dead processes.
_ZOMBIES_EVERY_S = 10.0

Report = Callable[[Finding], None]
#: (seconds since the start, interval) of looks while no use of a GPU is proven; later, a look comes with every sample.
#: The shortest use that was seen, a C program's on an H100, had its context for 0.16 s: looks every 0.2 s missed 5 of
#: 10 such programs, looks every 0.1 s none of 6. A look costs 0.04 ms a GPU on an H200, 0.3 ms on an H100.
_LOOKS = ((2.0, 0.05), (10.0, 0.1), (60.0, 0.5))
#: Interval between looks for reports; an idle look costs nothing else.
_REPORTS_S = 0.5
#: GPM values come every second at first, so that a short run has enough of them to be judged.
GPM_FIRST_S = 1.0
_GPM_FIRST_FOR_S = 60.0
#: Longest time of an alert's command.
ALERT_TIMEOUT_S = 20.0


class SampleWatchdog:
    """Judges samples: hangs, lost or full GPUs, full memory, dead processes. Call ``look`` after each.

    ``hang_after_s``: None: hangs are not looked for. ``report``: gets each finding, once for each GPU.
    """

    def __init__(self, sampler: Sampler, activity: Activity, hang_after_s: Optional[float], report: Report) -> None:
        self._sampler, self._report, self._hang_after_s = sampler, report, hang_after_s
        self._activity = activity
        self._reported: Set[Tuple[str, str]] = set()
        self._since_s: Dict[Tuple[str, str], float] = {}
        self._worked = False
        self._quiet_since_s: Optional[float] = None
        self._zombies_due_s = 0.0
        self._waited: Dict[int, Tuple[float, float]] = {}
        self._dead: Set[Tuple[str, int]] = set()

    def look(self, sample: Dict[str, Any], now_s: Optional[float] = None) -> None:
        """Judge one ``sample`` event's keys. ``now_s`` is a monotonic clock."""
        now_s = time.monotonic() if now_s is None else now_s
        for uuid, numbers in self._sampler.xids().items():
            for number in sorted(set(numbers)):
                severity = "warning" if number in XIDS_OF_PROGRAMS else "error"
                self._once("gpu-xid", "%s %d" % (uuid, number), "Xid %d on %s" % (number, uuid), severity)
        for uuid in sorted(self._sampler.lost):
            self._once("gpu-lost", uuid, "NVML reports that %s is lost" % uuid)
        for uuid in sorted(self._sampler.failing):
            self._once("device-access-lost", uuid, "%s no longer responds to NVML" % uuid)
        for gpu in sample["gpus"]:
            self._gpu(gpu, now_s)
        self._shares(sample)
        self._starved(sample, now_s)
        self._hang(sample, now_s)
        if now_s >= self._zombies_due_s:
            self._zombies_due_s = now_s + _ZOMBIES_EVERY_S
            self._zombies()

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

    def _starved(self, sample: Dict[str, Any], now_s: float) -> None:
        """Report that a process which drives the run waits for a CPU most of the time."""
        before, self._waited = self._waited, {}
        shares = [0.0]
        for pid in self._sampler.mains:
            read_s, waited_s = time.monotonic(), processes.waited_s(pid)
            if waited_s is not None:
                self._waited[pid] = read_s, waited_s
                earlier_s, had_waited_s = before.get(pid, (read_s, waited_s))
                shares.append((waited_s - had_waited_s) / max(read_s - earlier_s, 1e-3))
        if self._lasts("starved", "", max(shares) >= STARVED_SHARE, STARVED_S, now_s):
            used, share_pct = sample["cpu_cores"] or 0.0, 100 * min(1.0, max(shares))
            evidence = "%.2f cores in use, and ready without a CPU in %.0f %% of the time" % (used, share_pct)
            self._once("cpu-starved", "", evidence)

    def _hang(self, sample: Dict[str, Any], now_s: float) -> None:
        """Report a hang: silence after work. A first download or compilation is silent too."""
        active = self._activity.new()
        quiet = _quiet(sample)
        self._worked = self._worked or not quiet
        if self._hang_after_s is None or active or not quiet or not self._worked:
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
        """Report dead processes that hold memory at two looks: any process is dead while the driver takes it apart."""
        before, self._dead = self._dead, set()
        for uuid in self._sampler.uuids:
            for listed in self._sampler.compute_processes(uuid) or []:
                process = processes.read(listed.pid)
                if process is None or process.state != "Z" or not listed.memory_bytes:
                    continue
                self._dead.add((uuid, listed.pid))
                if (uuid, listed.pid) in before:
                    evidence = "PID %d holds %d bytes on %s" % (listed.pid, listed.memory_bytes, uuid)
                    self._once("zombie-holds-gpu-memory", "%s %d" % (uuid, listed.pid), evidence)

    def _lasts(self, what: str, uuid: str, holds: bool, seconds: float, now_s: float) -> bool:
        """Return whether it has held without a break for so long."""
        if not holds:
            self._since_s.pop((what, uuid), None)
            return False
        return now_s - self._since_s.setdefault((what, uuid), now_s) >= seconds

    def _once(self, id: str, about: str, evidence: str, severity: Optional[str] = None) -> None:
        if (id, about) in self._reported:
            return
        self._reported.add((id, about))
        self._report(by_id(id).finding([evidence], severity=severity))


def _quiet(sample: Dict[str, Any]) -> bool:
    """Return whether nothing is computed: by GPM where it is, else by utilisation, else by the CPU."""
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


class Observer(threading.Thread):
    """Writes ``sample`` and ``gpu.context`` events, and the watchdog's findings, until ``stop``.

    ``contexts``: UUIDs of the GPUs that processes under ``target``, a PID, were seen to use; others prove nothing.
    """

    def __init__(
        self,
        plan: AgentPlan,
        sampler: Sampler,
        target: int,
        journal: Journal,
        reports: TargetReports,
        activity: Activity,
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self._interval_s = plan.sample_interval_s
        self._unproven: Dict[str, Gpu] = {gpu.uuid: gpu for gpu in plan.gpus}
        self._sampler, self._target, self._journal, self._reports = sampler, target, journal, reports
        sampler.mains.add(target)
        self.contexts: List[str] = []
        self._stop_requested = threading.Event()
        self._run_id, self._alert_command = plan.run_id, plan.alert_command
        self._watchdog = SampleWatchdog(sampler, activity, plan.hang_after_s, self._report)

    def run(self) -> None:
        started_s = time.monotonic()
        due_s = started_s + self._interval_s
        while True:
            now_s = time.monotonic()
            looks = (pause_s for until_s, pause_s in _LOOKS if now_s - started_s < until_s)
            quick_s = next(looks, None) if self._unproven else None
            pause_s = min(due_s - now_s, _REPORTS_S if quick_s is None else quick_s)
            if self._stop_requested.wait(max(0.0, pause_s)):
                break
            self._reports.read()
            due = time.monotonic() >= due_s
            if due or quick_s is not None:
                self._look_for_contexts()
            if due:
                early = time.monotonic() - started_s < _GPM_FIRST_FOR_S
                self._sampler.gpm_interval_s = GPM_FIRST_S if early else GPM_INTERVAL_S
                sample = self._sampler.sample()
                self._journal.write(Sample(**sample))
                self._watchdog.look(sample)
                due_s = max(due_s + self._interval_s, time.monotonic())
        if self._sampler.uuids and due_s > started_s + self._interval_s:
            self._sampler.gpm_interval_s = 0.0  # all work of a short script may follow the sample before
            self._journal.write(Sample(**self._sampler.sample()))

    def stop(self) -> bool:
        """Request its end and wait up to 2 s. Return False if it hangs in NVML, which nothing should query then."""
        self._stop_requested.set()
        self.join(timeout=2.0)
        return not self.is_alive()

    def _look_for_contexts(self) -> None:
        if not self._unproven:
            return
        listed = {uuid: self._sampler.compute_processes(uuid) for uuid in self._unproven}
        if not any(users is None or users for users in listed.values()):
            return  # NVML answers, and nobody has a context: no need to walk through /proc
        tree = {self._target} | {process.pid for process in processes.descendants(self._target)}
        for uuid, users in listed.items():
            for process in users or []:
                if process.pid in tree:
                    self._prove(uuid, process.pid, "nvml-process", process.memory_bytes)
                    break
        # A mapping of a GPU on which NVML sees no process at all is not a context, however much it maps.
        busy = {uuid for uuid, users in listed.items() if users is None or users}
        for pid in sorted(tree):  # where NVML lists no process of ours: another PID namespace, an old driver
            if self._unproven and processes.has_cuda_context(pid):
                for uuid in busy.intersection(self._mapped(pid)):
                    self._prove(uuid, pid, "uvm-mapping", None)

    def _mapped(self, pid: int) -> List[str]:
        """Return the unproven GPUs that this process has a context on; by elimination if there is but one."""
        if len(self._sampler.uuids) == 1:
            return list(self._unproven)
        minors = processes.context_minors(pid)
        # Slices of one GPU share its node, so descriptors do not distinguish them.
        return [uuid for uuid, gpu in self._unproven.items() if gpu.minor in minors and uuid.startswith("GPU-")]

    def _prove(self, uuid: str, pid: int, evidence: str, memory_bytes: Optional[int]) -> None:
        if self._unproven.pop(uuid, None) is not None:
            self._sampler.mains.add(pid)
            self.contexts.append(uuid)
            self._journal.write(GpuContext(uuid=uuid, pid=pid, evidence=evidence, memory_bytes=memory_bytes))

    def _report(self, finding: Finding) -> None:
        self._journal.write(finding.event())
        if self._alert_command:  # in a thread of its own, so that it cannot delay the run
            words = (self._alert_command, finding, self._run_id, self._journal)
            threading.Thread(target=run_alert, args=words, name="alert", daemon=True).start()


def run_alert(command: str, finding: Finding, run_id: str, journal: Journal) -> None:
    """Run the user's command for a finding, by /bin/sh where the target runs; its failure is a note in the evidence."""
    argv, null, pipe, merged = ["/bin/sh", "-c", command], subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    env = {
        **os.environ,
        "SEATRIAL_FINDING": json.dumps(finding.to_dict()),
        "SEATRIAL_FINDING_ID": finding.id,
        "SEATRIAL_FINDING_MESSAGE": finding.message,
        "SEATRIAL_RUN_ID": run_id,
    }
    try:
        ended = subprocess.run(argv, stdin=null, stdout=pipe, stderr=merged, timeout=ALERT_TIMEOUT_S, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        journal.note("the alert's command failed: %s" % type(error).__name__)
        return
    if ended.returncode:  # 0 also where the agent, which reaps every child, has taken the exit code
        last = (ended.stdout.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1][:200]
        killed = "it died of signal %d" % -ended.returncode
        journal.note("the alert's command failed: %s" % (killed if ended.returncode < 0 else last))
