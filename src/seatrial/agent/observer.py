"""The observer thread: samples, and the first CUDA context of the target on each GPU.

A thread of its own because NVML can hang for seconds in a broken driver; output and signals must go on meanwhile.
"""

import threading
import time
from typing import Dict, List, Optional

from seatrial.agent.activity import Activity
from seatrial.agent.alert import Alerts
from seatrial.agent.plan import Gpu, Plan
from seatrial.agent.streams.journal import Journal
from seatrial.agent.streams.reports import Reports
from seatrial.agent.watchdog import Watchdog
from seatrial.events import GpuContext, Sample
from seatrial.findings.finding import Finding
from seatrial.probe import proc
from seatrial.probe.sampler import Sampler

#: While a GPU is not proven to be used: until so many seconds after the start, look so often; after that, with every
#: sample. The shortest use that was seen, a C program's on an H100, had its context for 0.16 s: looks every 0.2 s
#: missed 5 of 10 such programs, looks every 0.1 s none of 6. A look costs 0.04 ms a GPU on an H200, 0.3 ms on an H100.
_LOOKS = ((2.0, 0.05), (10.0, 0.1), (60.0, 0.5))

#: How often reports are looked for; the time of one that tells none is that of the look.
_REPORTS_S = 0.5

#: GPM values come every second at first, so that a short run has enough of them to be judged; later they are the
#: costly part of a sample, and a mean over five seconds tells as much.
GPM_FIRST_S, GPM_LATER_S = 1.0, 5.0
_GPM_FIRST_FOR_S = 60.0


class Observer(threading.Thread):
    """Writes ``sample`` and ``gpu.context`` events, and the watchdog's findings, until told to stop.

    Args:
        target: PID of the target; contexts of processes outside its tree prove nothing.

    Attributes:
        contexts: UUIDs of the GPUs that the target was seen to use.
    """

    def __init__(
        self, plan: Plan, sampler: Sampler, target: int, journal: Journal, reports: Reports, activity: Activity
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self._interval_s = plan.sample_interval_s
        self._unproven: Dict[str, Gpu] = {gpu.uuid: gpu for gpu in plan.gpus}
        self._sampler = sampler
        sampler.mains.add(target)
        self._target = target
        self._journal = journal
        self._reports = reports
        self.contexts: List[str] = []
        self._stop_asked = threading.Event()
        self._alerts = Alerts(plan.run_id, plan.alert_command, plan.alert_webhook, journal)
        self._watchdog = Watchdog(sampler, activity, plan.hang_after_s, self._tell)

    def run(self) -> None:
        started_s = time.monotonic()
        due_s = started_s + self._interval_s
        while True:
            now_s = time.monotonic()
            quick_s = self._pause_between_looks(now_s - started_s)
            pause_s = min(due_s - now_s, _REPORTS_S if quick_s is None else quick_s)
            if self._stop_asked.wait(max(0.0, pause_s)):
                return
            self._reports.read()
            due = time.monotonic() >= due_s
            if due or quick_s is not None:
                self._look_for_contexts()
            if due:
                early = time.monotonic() - started_s < _GPM_FIRST_FOR_S
                self._sampler.gpm_interval_s = GPM_FIRST_S if early else GPM_LATER_S
                sample = self._sampler.sample()
                self._journal.write(Sample(**sample))
                self._watchdog.look(sample)
                due_s = max(due_s + self._interval_s, time.monotonic())

    def _pause_between_looks(self, elapsed_s: float) -> Optional[float]:
        """Seconds, or None where the samples are often enough."""
        if not self._unproven:
            return None
        return next((pause_s for until_s, pause_s in _LOOKS if elapsed_s < until_s), None)

    def stop(self) -> bool:
        """Ask it to end, and wait a moment. False when it hangs in NVML: then nobody should ask NVML anything."""
        self._stop_asked.set()
        self.join(timeout=2.0)
        return not self.is_alive()

    def _look_for_contexts(self) -> None:
        if not self._unproven:
            return
        listed = {uuid: self._sampler.compute_processes(uuid) for uuid in self._unproven}
        if not any(processes is None or processes for processes in listed.values()):
            return  # NVML answers, and nobody has a context: no need to walk through /proc
        tree = {self._target} | {process.pid for process in proc.descendants(self._target)}
        for uuid, processes in listed.items():
            for process in processes or []:
                if process.pid in tree:
                    self._prove(uuid, process.pid, "nvml-process", process.memory_bytes)
                    break
        # A mapping of a GPU on which NVML sees no process at all is no context, whatever it maps.
        busy = {uuid for uuid, processes in listed.items() if processes is None or processes}
        self._look_for_mappings(tree, busy)

    def _look_for_mappings(self, tree: "set[int]", busy: "set[str]") -> None:
        """Where NVML lists nothing of ours (other PID namespace, old driver), /proc does."""
        for pid in sorted(tree):
            if not self._unproven:
                return
            if proc.has_cuda_context(pid):
                for uuid in self._mapped(pid):
                    if uuid in busy:
                        self._prove(uuid, pid, "uvm-mapping", None)

    def _mapped(self, pid: int) -> List[str]:
        """Unproven GPUs that this process has a context on; by elimination when there is but one."""
        if len(self._sampler.uuids) == 1:
            return list(self._unproven)
        minors = proc.context_minors(pid)
        # Slices of one GPU share its node, so descriptors do not tell them apart.
        return [uuid for uuid, gpu in self._unproven.items() if gpu.minor in minors and uuid.startswith("GPU-")]

    def _prove(self, uuid: str, pid: int, evidence: str, memory_bytes: Optional[int]) -> None:
        if self._unproven.pop(uuid, None) is not None:
            self._sampler.mains.add(pid)
            self.contexts.append(uuid)
            self._journal.write(GpuContext(uuid=uuid, pid=pid, evidence=evidence, memory_bytes=memory_bytes))

    def _tell(self, finding: Finding) -> None:
        self._journal.write(finding.event())
        self._alerts.send(finding)
