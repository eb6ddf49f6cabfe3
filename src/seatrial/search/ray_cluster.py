"""The Ray cluster: join it, and look whether each node that could take a trial is able to run one."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import seatrial
from seatrial.errors import CapacityError, EngineUnavailableError, SeatrialError, UsageError
from seatrial.job.model import Job
from seatrial.system.host import Host

#: Ray itself tries for 80 seconds.
_CONNECT_S = 5.0

#: A node's first worker, its imports, and its container engine's answer.
_LOOK_S = 120.0

#: Of a project, what no trial needs on another machine. In .gitignore's form.
_NOT_SENT = (".git", ".seatrial", ".venv", "venv", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Node:
    """A living node. ``resources``: what it has, by Ray's names."""

    id: str
    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Needs:
    """What one trial takes of a node."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def room(self, node: Node) -> int:
        """Return how many trials the node has room for at once."""
        return min(int(node.resources.get(name, 0.0) / needed + 1e-9) for name, needed in self.resources.items())


def require_ray() -> None:
    """Raises UsageError: the extra is not installed."""
    if find_spec("ray") is None:
        raise UsageError("--engine ray needs Ray, which is not installed", run="pip install 'seatrial[ray]'")


def connect(address: str | None, upload: Path | None = None) -> None:
    """Join the cluster as a driver.

    Args:
        address: HOST:PORT of its head; None takes $RAY_ADDRESS, else the cluster that this machine is a node of.
        upload: folder that Ray copies to every node as its workers' working directory.

    Raises SeatrialError in one sentence.
    """
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where not in ("auto", "local"):
        _knock(where)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (Path.home() / ".ray" / "auth_token").is_file() or os.environ.get("RAY_AUTH_TOKEN"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    try:
        kept = {"env_vars": {"RAY_CHDIR_TO_TRIAL_DIR": "0"}}  # a worker stays in the copied folder
        env = {"working_dir": str(upload), "excludes": list(_NOT_SENT), **kept} if upload else None
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", namespace="seatrial", runtime_env=env)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise explain(where, str(error)) from error


def _knock(where: str) -> None:
    """Raises EngineUnavailableError: nobody listens there; UsageError: it is no address of a head."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or "://" in where:
        raise UsageError(f"--address {where!r} is not HOST:PORT", run="seatrial sweep … --address 10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            pass
    except OSError as error:
        raise EngineUnavailableError(
            f"No Ray cluster answers at {where}: {error.strerror or error}",
            run=f"ray start --head --port {port}   # on {host}; on each other machine: ray start --address={where}",
        ) from error


def explain(where: str, text: str) -> SeatrialError:
    """Return the error for what Ray printed when it was not reached."""
    if "ersion mismatch" in text:
        versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
        theirs, ours = (versions + [("?", "?")] * 2)[:2]
        return UsageError(
            f"The cluster runs Ray {theirs[0]} on Python {theirs[1]}, and here are Ray {ours[0]} on Python {ours[1]}",
            cause="Ray passes Python objects between machines: both versions must be the same on all of them",
            run=f"uv venv --python {theirs[1]} && pip install 'ray[tune]=={theirs[0]}'",
        )
    if "uthenticat" in text or "token" in text.lower():
        return UsageError(
            f"The Ray cluster at {where} wants a token that this machine does not have",
            run="scp HEAD:.ray/auth_token ~/.ray/auth_token && export RAY_AUTH_MODE=token",
        )
    return EngineUnavailableError(
        f"Ray cannot be reached at {where}: {text.strip().splitlines()[0][:300]}",
        cause="The searcher's machine must be one of the cluster's nodes; it need not run trials",
        run="ray start --head   # or join one: ray start --address=HEAD:6379 --num-cpus 0",
    )


def nodes() -> list[Node]:
    """Return the living nodes."""
    import ray

    alive = [one for one in ray.nodes() if one["Alive"]]
    return [Node(one["NodeID"], one.get("NodeName") or one["NodeManagerAddress"], one["Resources"]) for one in alive]


def needs_of(job: Job, found: Sequence[Node]) -> Needs:
    """Return what a trial takes. Raises UsageError for GPUs by name, or all; CapacityError if no node has as many."""
    request, cpus = job.gpus, job.cpus or 1.0
    if request.kind in ("devices", "all") or request.profile is not None:
        raise UsageError(
            f"--gpus {request} means GPUs of one machine, and Ray chooses the node", run="seatrial sweep … --gpus 1"
        )
    have = any(node.resources.get("GPU") for node in found)
    gpus = {"none": 0.0, "auto": float(have)}.get(request.kind, request.share or float(request.count or 0))
    needs = Needs(cpus, gpus)
    if not any(needs.room(node) for node in found):
        counted = ", ".join(
            f"{node.name} {node.resources.get('CPU', 0):g} CPUs, {node.resources.get('GPU', 0):g} GPUs"
            for node in found
        )
        raise CapacityError(
            f"A trial wants {cpus:g} CPUs and {gpus:g} GPUs, and no node of the Ray cluster has as many",
            cause=f"Ray counts: {counted}",
            run="ray start --address=HEAD:6379   # on a machine that has; or: seatrial sweep … --cpus 1 --gpus none",
        )
    return needs


def check_nodes(found: Sequence[Node], needs: Needs, job: Job, mark: tuple[str, str]) -> bool:
    """Return whether every node that can take a trial sees this disk.

    Args:
        mark: path and text of a file in the state folder.

    Raises EngineUnavailableError, naming the first node that cannot run a trial.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    look, words = ray.remote(num_cpus=0, max_retries=0)(_looker()), (job.backend, bool(needs.gpus), mark)
    able = [node for node in found if needs.room(node)]
    answers = [look.options(scheduling_strategy=On(node.id, soft=False)).remote(*words) for node in able]
    seen = True
    for node, reference in zip(able, answers, strict=True):
        try:
            answer: dict[str, Any] = ray.get(reference, timeout=_LOOK_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            last = next((line for line in reversed(str(error).splitlines()) if line.strip()), "no answer").strip()
            raise EngineUnavailableError(
                f"Node {node.name} of the Ray cluster does not answer: {last[:200]}", run="ray status"
            ) from error
        if answer["version"] != seatrial.__version__:
            raise EngineUnavailableError(
                f"Node {node.name} of the Ray cluster has seatrial {answer['version']}, not {seatrial.__version__}",
                cause=answer["problem"],
                run=f"{answer['python']} -m pip install 'seatrial[ray]=={seatrial.__version__}'   # on that node",
            )
        if answer["problem"]:
            raise EngineUnavailableError(
                f"Node {node.name} of the Ray cluster cannot run a trial: {answer['problem']}",
                run="seatrial doctor   # on that node",
            )
        seen = seen and bool(answer["seen"])
    return seen


def _looker() -> Any:
    """Return the function that runs on each node. It travels whole: a node may have no seatrial to import it from."""

    def look(backend: str, gpus_wanted: bool, mark: tuple[str, str]) -> dict[str, Any]:
        import sys

        answer: dict[str, Any] = {"python": sys.executable, "version": "none", "seen": False, "problem": None}
        try:
            import seatrial

            answer["version"] = seatrial.__version__
            from seatrial.backends import table

            table.choose(backend, Host(), gpus_wanted=gpus_wanted)
        except Exception as error:  # noqa: BLE001  # whatever another version raises
            answer["problem"] = str(error)
        try:
            with open(mark[0]) as file:  # noqa: PTH123
                answer["seen"] = file.read() == mark[1]
        except OSError:
            pass
        return answer

    look.__module__ = "__main__"
    return look
