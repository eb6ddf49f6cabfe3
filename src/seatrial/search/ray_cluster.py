"""Run trials on a Ray cluster: its nodes, the resources of a trial, a check of each node, and a trial on a node."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import seatrial
from seatrial import errors
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

#: Ray itself tries to connect for 80 seconds.
_CONNECT_S = 5.0
#: Time for a node's first worker, its imports, and its container engine's answer.
_CHECK_S = 120.0
#: Parts of a project that no trial needs on another machine, as in .gitignore.
_NOT_SENT = (".git", ".seatrial", ".venv", "venv", "__pycache__", "node_modules")


class RayNode(NamedTuple):
    """A living node with its resources by Ray's names."""

    id: str
    name: str
    resources: Mapping[str, float]

    def capacity(self, needs: Mapping[str, float]) -> int:
        """Return how many trials the node can run at once."""
        return min(int(self.resources.get(name, 0.0) / needed + 1e-9) for name, needed in needs.items())


def connect(address: str | None, upload: Path | None = None) -> None:
    """Join the cluster as a driver. Raises SeatrialError in one sentence.

    ``address``: HOST:PORT of its head; None: $RAY_ADDRESS, else this machine's. ``upload``: the workers' folder.
    """
    import ray

    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where not in ("auto", "local"):
        _check_address(where)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (Path.home() / ".ray" / "auth_token").is_file() or os.environ.get("RAY_AUTH_TOKEN"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    stay = {"env_vars": {"RAY_CHDIR_TO_TRIAL_DIR": "0"}}  # a worker stays in the copied folder
    env = {"working_dir": str(upload), "excludes": list(_NOT_SENT), **stay} if upload else None
    try:
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", namespace="seatrial", runtime_env=env)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise connection_error(where, str(error)) from error


def _check_address(where: str) -> None:
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or "://" in where:
        raise errors.UsageError(f"--address {where!r} is not HOST:PORT", run="seatrial sweep … --address 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        problem = f"No Ray cluster answers at {where}: {error.strerror or error}"
        run = f"ray start --head --port {port}   # on {host}; on each other machine: ray start --address={where}"
        raise errors.EngineUnavailableError(problem, run=run) from error


def connection_error(where: str, text: str) -> errors.SeatrialError:
    """Return the error for the text with which Ray refused to connect."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if "ersion mismatch" in text and len(versions) == 2:
        (ray_there, python_there), (ray_here, python_here) = versions
        there, here = f"Ray {ray_there} on Python {python_there}", f"Ray {ray_here} on Python {python_here}"
        cause = "Ray passes Python objects between machines: both versions must be the same on all of them"
        run = f"uv venv --python {python_there} && pip install 'ray[tune]=={ray_there}'"
        return errors.UsageError(f"The cluster runs {there}, and here are {here}", cause=cause, run=run)
    if "uthenticat" in text or "token" in text.lower():
        problem = f"The Ray cluster at {where} requires a token that this machine does not have"
        run = "scp HEAD:.ray/auth_token ~/.ray/auth_token && export RAY_AUTH_MODE=token"
        return errors.UsageError(problem, run=run)
    message = f"Ray cannot be reached at {where}: {text.strip().splitlines()[0][:300]}"
    cause = "The searcher's machine must be one of the cluster's nodes; it need not run trials"
    run = "ray start --head   # or join one: ray start --address=HEAD:6379 --num-cpus 0"
    return errors.EngineUnavailableError(message, cause=cause, run=run)


def nodes_of_cluster() -> list[RayNode]:
    import ray

    alive = [each for each in ray.nodes() if each["Alive"]]
    named = ((each.get("NodeName") or each["NodeManagerAddress"], each) for each in alive)
    return [RayNode(each["NodeID"], name, each["Resources"]) for name, each in named]


def needs_of(job: Job, nodes: Sequence[RayNode]) -> dict[str, float]:
    """Return what a trial takes, by Ray's names. Raises UsageError: GPUs by name, or all; CapacityError: too many."""
    request, cpus = job.gpus, job.cpus or 1.0
    if request.kind in ("devices", "all") or request.profile is not None:
        problem = f"--gpus {request} means GPUs of one machine, and Ray chooses the node"
        raise errors.UsageError(problem, run="seatrial sweep … --gpus 1")
    any_gpu = float(any(node.resources.get("GPU") for node in nodes))
    gpus = {"none": 0.0, "auto": any_gpu}.get(request.kind, request.share or float(request.count or 0))
    needs = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    if not any(node.capacity(needs) for node in nodes):
        counted = (
            f"{node.name} {node.resources.get('CPU', 0):g} CPUs, {node.resources.get('GPU', 0):g} GPUs"
            for node in nodes
        )
        problem = f"A trial requires {cpus:g} CPUs and {gpus:g} GPUs, and no node of the Ray cluster has as many"
        run = "ray start --address=HEAD:6379   # on a machine that has; or: seatrial sweep … --cpus 1 --gpus none"
        raise errors.CapacityError(problem, cause=f"Ray counts: {', '.join(counted)}", run=run)
    return needs


def check_nodes(able: Sequence[RayNode], job: Job, gpus_wanted: bool, marker: Path) -> bool:
    """Return whether all nodes can read ``marker``. Raises EngineUnavailableError for the first that runs no trial."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check = ray.remote(num_cpus=0, max_retries=0)(_node_check())
    words = (job.backend, gpus_wanted, str(marker), marker.read_text())
    here = (NodeAffinitySchedulingStrategy(node.id, soft=False) for node in able)
    pending = [check.options(scheduling_strategy=strategy).remote(*words) for strategy in here]
    answers: list[dict[str, Any]] = []
    for node, reference in zip(able, pending, strict=True):
        name = f"Node {node.name} of the Ray cluster"
        try:
            answer = ray.get(reference, timeout=_CHECK_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no answer"]
            problem = f"{name} does not answer: {lines[-1][:200]}"
            raise errors.EngineUnavailableError(problem, run="ray status") from error
        if answer["version"] != seatrial.__version__:
            problem = f"{name} has seatrial {answer['version']}, not {seatrial.__version__}"
            run = f"{answer['python']} -m pip install 'seatrial[ray]=={seatrial.__version__}'   # on that node"
            raise errors.EngineUnavailableError(problem, cause=answer["problem"], run=run)
        if answer["problem"]:
            problem = f"{name} cannot run a trial: {answer['problem']}"
            raise errors.EngineUnavailableError(problem, run="seatrial doctor   # on that node")
        answers.append(answer)
    return all(answer["shared"] for answer in answers)


def _node_check() -> Any:
    """Return the function that runs on each node. Ray sends its code: a node may have no seatrial to import."""

    def check(backend: str, gpus_wanted: bool, marker: str, text: str) -> dict[str, Any]:
        answer: dict[str, Any] = {"python": sys.executable, "version": "none", "shared": False, "problem": None}
        try:
            import seatrial

            answer["version"] = seatrial.__version__
            from seatrial.backends import table
            from seatrial.system.host import Host  # the module's own is sent by its name and would fail earlier

            table.choose(backend, Host(), gpus_wanted=gpus_wanted)
        except Exception as error:  # noqa: BLE001  # another version may raise anything
            answer["problem"] = str(error)
        with suppress(OSError):
            answer["shared"] = Path(marker).read_text() == text
        return answer

    check.__module__ = "__main__"
    return check


# ----------------------------------------------------------------------------------------------- a trial on a node
# A trial is a separate process, which exchanges lines of JSON with a Ray worker and is not its child. When Ray kills
# the worker, or the searcher ends, the pipe closes, and the trial stops its run as ``seatrial runs stop`` does, with a
# receipt. So no GPU stays with an abandoned trial. This process does not load Ray.

#: Origin and reason of the stop when the searcher or the Ray worker has gone.
GONE = ("search", "its searcher, or its worker of Ray, has gone")


@dataclass
class RemoteStudy:
    """Send what happens to the trial to the searcher, which has the study."""

    out: IO[str]
    series: str | None = None

    def send(self, kind: str, **keys: Any) -> None:
        """Send a line; the reader may have gone."""
        with suppress(BrokenPipeError, ValueError):
            self.out.write(json.dumps({"kind": kind, **keys}) + "\n")
            self.out.flush()

    def send_problem(self, error: errors.SeatrialError) -> None:
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
            problem = f"Run {held[uuid]} holds {uuid}, which Ray gave to this trial"
            raise errors.GpusHeldError(problem, run="seatrial runs ls")
        return self.job

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
    """Return a request for the GPUs that Ray gave, as NVML's indices or UUIDs, by UUID. Raises GpuContractError."""
    if not ids:
        return GpuRequest("none")
    uuids = {**{str(gpu.index): gpu.uuid for gpu in gpus if gpu.mig is None}, **{gpu.uuid: gpu.uuid for gpu in gpus}}
    for each in ids:
        if each not in uuids:
            raise errors.GpuContractError(
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
            update["data"] = job.data.changed(source=project / job.data.source.relative_to(job.project))
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
        if (run := start_trial(search, trial)) is None:
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
    except errors.SeatrialError as error:
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
