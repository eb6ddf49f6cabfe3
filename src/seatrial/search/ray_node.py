"""One trial on a node of a Ray cluster: a process of its own, which a Ray worker starts and talks to in lines of JSON.

It is no child of the worker: when that is killed, with its searcher or by Ray, the pipe closes, and the run is stopped
as by ``seatrial runs stop``, with a receipt. So no GPU stays with a trial that nobody follows.
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
from seatrial.runs.finish import finalise
from seatrial.runs.leases import leases
from seatrial.runs.run import COPIED, Run
from seatrial.search.request import Objective
from seatrial.search.runner import ending_as_read, follow_trial, leftover_processes, start_trial
from seatrial.search.search import Search
from seatrial.search.space import Space
from seatrial.search.trial import Trial
from seatrial.system.host import Host

#: Why a trial ends whose searcher, or whose Ray worker, has gone.
GONE = ("search", "its searcher, or its worker of Ray, has gone")


@dataclass
class Wire:
    """Stands for the study where a trial is followed elsewhere: everything about it goes to the searcher."""

    out: IO[str]
    series: str | None = None

    def send(self, kind: str, **keys: Any) -> None:
        """Send a line; nobody may be there any more to read it."""
        try:
            self.out.write(json.dumps({"kind": kind, **keys}) + "\n")
            self.out.flush()
        except (BrokenPipeError, ValueError):
            pass

    def begin(self, number: int, run_id: str) -> None:
        self.send("begin", run_id=run_id)

    def report(self, number: int, step: int, value: float) -> bool:
        self.send("report", step=step, value=value)
        return False

    def again(self, number: int) -> None:
        """Its run never began: carry_out sends that, with the problem if there is one."""

    def get(self, key: str) -> str | None:
        return self.series

    def trials(self) -> list[Trial]:
        return []


class NodeSearch(Search):
    """A search as one trial sees it: the searcher decides when it is to end, and why."""

    stop: tuple[str, str | None] | None = None

    def job_of(self, trial: Trial) -> Job:
        """Raises GpusHeldError: a run that Ray knows nothing of holds a GPU that Ray gave to this trial."""
        request = self.job.gpus
        held = leases(self.host).current(beside=request.share or 1.0) if request.devices else {}
        for uuid in request.devices:
            if uuid in held:
                raise GpusHeldError(
                    f"Run {held[uuid]} holds {uuid}, which Ray gave to this trial", run="seatrial runs ls"
                )
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


def request_of(ids: list[str], asked: GpuRequest, gpus: tuple[Gpu, ...]) -> GpuRequest:
    """Return a request for exactly the GPUs that Ray gave to this trial, by UUID.

    Args:
        ids: NVML's indices, or UUIDs where the node was started with those.

    Raises GpuContractError: Ray counts GPUs that are not there.
    """
    if not ids:
        return GpuRequest("none")
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus if gpu.mig is None}
    uuids = []
    for one in ids:
        uuid = next((gpu.uuid for gpu in gpus if gpu.uuid == one), by_index.get(one))
        if uuid is None:
            raise GpuContractError(
                f"Ray gave this trial GPU {one}, and this node has {len(by_index) or 'none'}",
                cause="The node was started with --num-gpus of more than it has",
                run="ray stop; ray start --address HEAD:6379   # without --num-gpus, Ray counts them itself",
            )
        uuids.append(uuid)
    return replace(asked, kind="devices", count=None, profile=None, devices=tuple(uuids))


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
            update["data"] = job.data.model_copy(update={"source": inside})
    return job.model_copy(update=update)


def carry_out(order: Mapping[str, Any], wire: Wire, commands: IO[str], host: Host) -> None:
    """Run the trial from start to end; every outcome is sent."""
    objective = None if order["objective"] is None else Objective(*order["objective"])
    trial = Trial(order["number"], order["settings"], "running")
    try:
        search = NodeSearch(
            study=wire,  # type: ignore[arg-type]  # what a trial needs of a study
            space=Space(()),
            objective=objective,
            job=job_on_node(order, host),
            host=host,
            say=lambda line: wire.send("say", line=line),
        )
        threading.Thread(target=_listen, args=(commands, search), daemon=True).start()
        run = start_trial(search, trial)
        if run is not None:
            _to_the_end(search, trial, run, wire, copied=order["copied"])
        elif search.problem is not None:
            _send_problem(wire, search.problem)
        else:
            wire.send("again")
    except SeatrialError as error:
        _send_problem(wire, error)


def _to_the_end(search: NodeSearch, trial: Trial, run: Run, wire: Wire, *, copied: bool) -> None:
    gpus = run.plan().gpus
    reading, state = follow_trial(search, trial, run, just_started=True)
    receipt = finalise(run, search.host, ended=state)
    if (left := leftover_processes(run, gpus, search.over)) is not None:
        search.say(f"trial {trial.number}: {left}")
    if receipt is None:
        wire.send("again")
        return
    names = (*COPIED, "plan.json", "summary.json") if copied else ()
    files = {name: (run.folder / name).read_text() for name in names}
    wire.send("end", run_id=run.id, ending=asdict(ending_as_read(receipt, search.objective, reading)), files=files)


def _listen(commands: IO[str], search: NodeSearch) -> None:
    """Read {"origin": …, "why": …} lines; the end of the pipe is the end of whoever wanted the trial."""
    for line in commands:
        command = json.loads(line)
        search.end_by(command["origin"], command.get("why"))
    search.end_by(*GONE)


def _send_problem(wire: Wire, error: SeatrialError) -> None:
    wire.send("problem", message=error.message, cause=error.cause, run=error.run, exit_code=error.exit_code)


def main() -> None:
    """Started by a Ray worker, whose child it does not stay: Ray kills those."""
    if os.fork():
        os._exit(0)
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    line = sys.stdin.readline()
    if line:
        order = json.loads(line)
        carry_out(order, Wire(out, order["series"]), sys.stdin, Host())


if __name__ == "__main__":
    main()
