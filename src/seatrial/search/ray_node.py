"""Run one trial on a node of a Ray cluster: a process of its own, which exchanges lines of JSON with a Ray worker.

It is not a child of the worker: when Ray kills that, or its searcher ends, the pipe closes, and the run is stopped as
by ``seatrial runs stop``, with a receipt. So no GPU stays with a trial that nobody follows.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from seatrial.errors import GpuContractError, GpusHeldError, SeatrialError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import DataMount, Job
from seatrial.job.plan import Gpu
from seatrial.planning.host import read_host
from seatrial.runs.leases import leases
from seatrial.runs.run import COPIED
from seatrial.runs.status import finalise
from seatrial.search.request import Objective
from seatrial.search.runner import ending_as_read, follow_trial, leftover_processes, start_trial
from seatrial.search.search import Search
from seatrial.search.space import Space
from seatrial.search.trial import Trial
from seatrial.system.host import Host
from seatrial.system.records import MAX_OUTPUT_BYTES

#: Origin and reason of the stop when the searcher or the Ray worker has gone.
GONE = ("search", "its searcher, or its worker of Ray, has gone")


@dataclass
class RemoteStudy:
    """Send what happens to the trial to the searcher, which has the study."""

    out: IO[str]
    series: str | None = None

    def send(self, kind: str, **keys: Any) -> None:
        """Send a line; the reader may have gone."""
        try:
            self.out.write(json.dumps({"kind": kind, **keys}) + "\n")
            self.out.flush()
        except (BrokenPipeError, ValueError):
            pass

    def send_problem(self, error: SeatrialError) -> None:
        self.send("problem", message=error.message, cause=error.cause, run=error.run, exit_code=error.exit_code)

    def begin(self, number: int, run_id: str) -> None:
        self.send("begin", run_id=run_id)

    def report(self, number: int, step: int, value: float) -> bool:
        self.send("report", step=step, value=value)
        return False

    def again(self, number: int) -> None:
        """Do nothing: run_trial sends it, with the problem if there is one."""

    def get(self, key: str) -> str | None:
        return self.series

    def trials(self) -> list[Trial]:
        return []


class NodeSearch(Search):
    """A search of one trial; the searcher decides when it is to end, and why."""

    stop: tuple[str, str | None] | None = None

    def job_of(self, trial: Trial) -> Job:
        """Return the job. Raises GpusHeldError: a run unknown to Ray holds a GPU that Ray gave to this trial."""
        request = self.job.gpus
        held = leases(self.host).current(share=request.share or 1.0) if request.devices else {}
        for uuid in held.keys() & set(request.devices):
            raise GpusHeldError(f"Run {held[uuid]} holds {uuid}, which Ray gave to this trial", run="seatrial runs ls")
        return self.job

    def report(self, trial: Trial, step: int, value: float) -> str | None:
        self.study.report(trial.number, step, value)
        return None

    def why_stop(self) -> tuple[str, str | None] | None:
        return self.stop

    def end_by(self, origin: str, why: str | None) -> None:
        """End the trial; called from another thread."""
        if origin == "kill":
            self.killed.set()
            return
        self.stop = self.stop or (origin, why)
        self.over.set()


def request_of(ids: list[str], requested: GpuRequest, gpus: tuple[Gpu, ...]) -> GpuRequest:
    """Return a request for exactly the GPUs that Ray gave to this trial, by UUID.

    Args:
        ids: NVML's indices, or UUIDs if the node was started with those.

    Raises GpuContractError: Ray counts GPUs that are not there.
    """
    if not ids:
        return GpuRequest("none")
    uuids = {**{str(gpu.index): gpu.uuid for gpu in gpus if gpu.mig is None}, **{gpu.uuid: gpu.uuid for gpu in gpus}}
    for each in ids:
        if each not in uuids:
            raise GpuContractError(
                f"Ray gave this trial GPU {each}, and this node has {sum(gpu.mig is None for gpu in gpus) or 'none'}",
                cause="The node was started with --num-gpus of more than it has",
                run="ray stop; ray start --address HEAD:6379   # without --num-gpus, Ray counts them itself",
            )
    return replace(requested, kind="devices", count=None, profile=None, devices=tuple(uuids[each] for each in ids))


def job_on_node(order: Mapping[str, Any], host: Host) -> Job:
    """Return the trial's job: in this node's folder of the project, on the GPUs that Ray gave it."""
    job = Job.model_validate_json(order["job"], strict=False)
    project = Path(order["project"])
    update: dict[str, Any] = {"project": project}
    if job.gpus.kind != "none":
        update["gpus"] = request_of(order["gpus"], job.gpus, read_host(host).gpus)
    if order["copied"]:
        models = project / ".seatrial" / "models" / f"{order['number']}"
        update["models"] = DataMount(source=models, read_only=False)
        if job.data is not None and job.data.source.is_relative_to(job.project):
            inside = project / job.data.source.relative_to(job.project)
            update["data"] = job.data.changed(source=inside)
    return job.changed(**update)


def run_trial(order: Mapping[str, Any], study: RemoteStudy, commands: IO[str], host: Host) -> None:
    """Run the trial from start to end; every outcome is sent."""
    trial = Trial(order["number"], order["settings"], "running")
    try:
        search = NodeSearch(
            study=study,  # type: ignore[arg-type]  # the part of a study that a trial needs
            space=Space(()),
            objective=None if order["objective"] is None else Objective(*order["objective"]),
            job=job_on_node(order, host),
            host=host,
            note=lambda line: study.send("note", line=line),
        )
        threading.Thread(target=_listen, args=(commands, search), daemon=True).start()
        run = start_trial(search, trial)
        if run is None:
            study.send_problem(search.problem) if search.problem is not None else study.send("again")
            return
        gpus = run.plan().gpus
        reading, state = follow_trial(search, trial, run, just_started=True)
        receipt = finalise(run, host, ended=state)
        if (left := leftover_processes(run, gpus, search.over)) is not None:
            search.note(f"trial {trial.number}: {left}")
        if receipt is None:
            study.send("again")
            return
        names = (*COPIED, "plan.json", "summary.json") if order["copied"] else ()
        files = {name: run.records.load(name, max_bytes=MAX_OUTPUT_BYTES).decode() for name in names}
        ending = asdict(ending_as_read(receipt, search.objective, reading))
        study.send("end", run_id=run.id, ending=ending, files=files)
    except SeatrialError as error:
        study.send_problem(error)


def _listen(commands: IO[str], search: NodeSearch) -> None:
    """Read {"origin": …, "why": …} lines; end the trial at the end of the pipe."""
    for line in commands:
        command = json.loads(line)
        search.end_by(command["origin"], command.get("why"))
    search.end_by(*GONE)


def main() -> None:
    """Leave the Ray worker that started this process, then run the trial: Ray kills a worker's children."""
    if os.fork():
        os._exit(0)
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    if line := sys.stdin.readline():
        order = json.loads(line)
        run_trial(order, RemoteStudy(out, order["series"]), sys.stdin, Host())


if __name__ == "__main__":
    main()
