"""Join a Ray cluster: find its nodes, what a trial takes of them, and whether each can run one."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import seatrial
from seatrial.errors import CapacityError, EngineUnavailableError, SeatrialError, UsageError
from seatrial.job.model import Job
from seatrial.system.host import Host

#: Ray itself tries to connect for 80 seconds.
_CONNECT_S = 5.0

#: Time for a node's first worker, its imports, and its container engine's answer.
_CHECK_S = 120.0

#: Parts of a project that no trial needs on another machine, as in .gitignore.
_NOT_SENT = (".git", ".seatrial", ".venv", "venv", "__pycache__", "node_modules")


@dataclass(frozen=True)
class RayNode:
    """A living node with its resources by Ray's names."""

    id: str
    name: str
    resources: Mapping[str, float]

    def capacity(self, needs: Mapping[str, float]) -> int:
        """Return how many trials the node can run at once."""
        return min(int(self.resources.get(name, 0.0) / needed + 1e-9) for name, needed in needs.items())


def connect(address: str | None, upload: Path | None = None) -> None:
    """Join the cluster as a driver.

    Args:
        address: HOST:PORT of its head; None takes $RAY_ADDRESS, else the cluster that this machine is a node of.
        upload: folder that Ray copies to every node as its workers' working directory.

    Raises SeatrialError in one sentence.
    """
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
        raise UsageError(f"--address {where!r} is not HOST:PORT", run="seatrial sweep … --address 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise EngineUnavailableError(
            f"No Ray cluster answers at {where}: {error.strerror or error}",
            run=f"ray start --head --port {port}   # on {host}; on each other machine: ray start --address={where}",
        ) from error


def connection_error(where: str, text: str) -> SeatrialError:
    """Return the error for the text with which Ray refused to connect."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if "ersion mismatch" in text and len(versions) == 2:
        (ray_there, python_there), (ray_here, python_here) = versions
        return UsageError(
            f"The cluster runs Ray {ray_there} on Python {python_there}, "
            f"and here are Ray {ray_here} on Python {python_here}",
            cause="Ray passes Python objects between machines: both versions must be the same on all of them",
            run=f"uv venv --python {python_there} && pip install 'ray[tune]=={ray_there}'",
        )
    if "uthenticat" in text or "token" in text.lower():
        return UsageError(
            f"The Ray cluster at {where} requires a token that this machine does not have",
            run="scp HEAD:.ray/auth_token ~/.ray/auth_token && export RAY_AUTH_MODE=token",
        )
    return EngineUnavailableError(
        f"Ray cannot be reached at {where}: {text.strip().splitlines()[0][:300]}",
        cause="The searcher's machine must be one of the cluster's nodes; it need not run trials",
        run="ray start --head   # or join one: ray start --address=HEAD:6379 --num-cpus 0",
    )


def nodes_of_cluster() -> list[RayNode]:
    alive = [each for each in ray.nodes() if each["Alive"]]
    return [
        RayNode(each["NodeID"], each.get("NodeName") or each["NodeManagerAddress"], each["Resources"]) for each in alive
    ]


def needs_of(job: Job, nodes: Sequence[RayNode]) -> dict[str, float]:
    """Return the resources that a trial takes, by Ray's names.

    Raises UsageError for GPUs by name, or all; CapacityError if no node has as many.
    """
    request, cpus = job.gpus, job.cpus or 1.0
    if request.kind in ("devices", "all") or request.profile is not None:
        raise UsageError(
            f"--gpus {request} means GPUs of one machine, and Ray chooses the node", run="seatrial sweep … --gpus 1"
        )
    any_gpu = float(any(node.resources.get("GPU") for node in nodes))
    gpus = {"none": 0.0, "auto": any_gpu}.get(request.kind, request.share or float(request.count or 0))
    needs = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    if not any(node.capacity(needs) for node in nodes):
        counted = (
            f"{node.name} {node.resources.get('CPU', 0):g} CPUs, {node.resources.get('GPU', 0):g} GPUs"
            for node in nodes
        )
        raise CapacityError(
            f"A trial requires {cpus:g} CPUs and {gpus:g} GPUs, and no node of the Ray cluster has as many",
            cause=f"Ray counts: {', '.join(counted)}",
            run="ray start --address=HEAD:6379   # on a machine that has; or: seatrial sweep … --cpus 1 --gpus none",
        )
    return needs


def check_nodes(able: Sequence[RayNode], job: Job, gpus_wanted: bool, marker: Path) -> bool:
    """Return True if every node sees this disk: it can read the marker file.

    Raises EngineUnavailableError, naming the first node that cannot run a trial.
    """
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
            raise EngineUnavailableError(f"{name} does not answer: {lines[-1][:200]}", run="ray status") from error
        if answer["version"] != seatrial.__version__:
            raise EngineUnavailableError(
                f"{name} has seatrial {answer['version']}, not {seatrial.__version__}",
                cause=answer["problem"],
                run=f"{answer['python']} -m pip install 'seatrial[ray]=={seatrial.__version__}'   # on that node",
            )
        if answer["problem"]:
            raise EngineUnavailableError(
                f"{name} cannot run a trial: {answer['problem']}", run="seatrial doctor   # on that node"
            )
        answers.append(answer)
    return all(answer["shared"] for answer in answers)


def _node_check() -> Any:
    """Return the function that runs on each node. Ray sends its code: a node may have no seatrial to import."""

    def check(backend: str, gpus_wanted: bool, marker: str, text: str) -> dict[str, Any]:
        import sys
        from pathlib import Path

        answer: dict[str, Any] = {"python": sys.executable, "version": "none", "shared": False, "problem": None}
        try:
            import seatrial

            answer["version"] = seatrial.__version__
            from seatrial.backends import table

            table.choose(backend, Host(), gpus_wanted=gpus_wanted)
        except Exception as error:  # noqa: BLE001  # another version may raise anything
            answer["problem"] = str(error)
        try:
            answer["shared"] = Path(marker).read_text() == text
        except OSError:
            pass
        return answer

    check.__module__ = "__main__"
    return check
