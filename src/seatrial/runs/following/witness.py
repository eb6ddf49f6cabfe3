"""The witness: what this host's own driver sees of a run's GPUs, while somebody follows the run.

The agent's evidence comes out of the container; this does not. Processes are told apart by their cgroup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seatrial.backends.base import Handle
from seatrial.events import HostWitness
from seatrial.job.plan import Plan
from seatrial.probe.machine import owner
from seatrial.probe.nvml import ComputeProcess
from seatrial.probe.sampler import Sampler
from seatrial.runs.run import Run

#: Between two looks. One costs 0.04 ms a GPU on an H200, and reading the cgroup of each process there.
LOOK_S = 1.0


class Witness(threading.Thread):
    """Counts, for each GPU, looks at which a process of the run's container had a context there, and others' alone.

    Args:
        container_id: of the run.
        processes: those with a context on a GPU; None when the driver does not tell.
    """

    def __init__(
        self, uuids: tuple[str, ...], container_id: str, processes: Callable[[str], list[ComputeProcess] | None]
    ) -> None:
        super().__init__(name="witness", daemon=True)
        self._uuids, self._container_id, self._processes = uuids, container_id, processes
        self._done = threading.Event()
        self.seen = {uuid: {"looks": 0, "ours": 0, "others": 0} for uuid in uuids}

    def run(self) -> None:
        while not self._done.wait(LOOK_S):
            for uuid in self._uuids:
                self.look(uuid)

    def look(self, uuid: str) -> None:
        """One look at one GPU. A process that this host cannot see (another PID namespace) counts as another's."""
        listed = self._processes(uuid)
        if listed is None:
            return
        owners = [owner(process.pid) for process in listed]
        ours = any(one is not None and one.container_id == self._container_id for one in owners)
        counts = self.seen[uuid]
        counts["looks"] += 1
        counts["ours"] += ours
        counts["others"] += bool(owners) and not ours

    def stop(self) -> None:
        self._done.set()


@contextmanager
def witnessing(run: Run, plan: Plan, handle: Handle) -> Iterator[None]:
    """While open, look at the run's GPUs, where it is a container of this machine; then write down what was seen."""
    uuids = tuple(gpu.uuid for gpu in plan.gpus)
    if not uuids or plan.container is None:
        yield
        return
    sampler = Sampler(uuids)
    witness = Witness(uuids, handle.id, sampler.compute_processes)
    witness.start()
    try:
        yield
    finally:
        witness.stop()
        witness.join(timeout=2 * LOOK_S)
        hung = witness.is_alive()  # in a broken driver; it is not asked again
        if not hung:
            sampler.close()
        if not run.ended and any(counts["looks"] for counts in witness.seen.values()):
            run.record(HostWitness(gpus=witness.seen))
