"""The Ray cluster: joined or told why not, and whether each node that could take a trial is able to run one."""

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

#: Ray itself tries for 80 seconds.
_CONNECT_S = 5.0

#: A node's first worker, its imports, and its container engine's answer.
_LOOK_S = 120.0

_HEAD = "ray start --head"


@dataclass(frozen=True)
class Node:
    """A living node. ``resources``: what it has, by Ray's names."""

    id: str
    name: str
    address: str
    resources: Mapping[str, float]

    @property
    def words(self) -> str:
        return self.name if self.name == self.address else f"{self.name} ({self.address})"


@dataclass(frozen=True)
class Needs:
    """What one trial takes of a node."""

    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def fit(self, node: Node) -> bool:
        return self.room(node) > 0

    def room(self, node: Node) -> int:
        """Trials that the node has room for at once."""
        return min(int(node.resources.get(name, 0.0) / needed + 1e-9) for name, needed in self.resources.items())


def connect(address: str | None) -> None:
    """Join the cluster as a driver.

    Args:
        address: HOST:PORT of its head; None: $RAY_ADDRESS, else the cluster that this machine is a node of.

    Raises SeatrialError in one sentence.
    """
    if find_spec("ray") is None:
        raise UsageError("--engine ray needs Ray, which is not installed", run="pip install 'seatrial[ray]'")
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where.startswith("ray://"):
        raise UsageError(
            f"{where} is the address of Ray's client, through which no study can be written",
            run=f"seatrial sweep … --engine ray --address {re.sub('^ray://|:[0-9]+$', '', where)}:6379",
        )
    if where not in ("auto", "local"):
        _knock(where)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (Path.home() / ".ray" / "auth_token").is_file() or os.environ.get("RAY_AUTH_TOKEN"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    try:
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", namespace="seatrial")
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise explain(where, str(error)) from error


def _knock(where: str) -> None:
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--address {where!r} is not HOST:PORT", run="seatrial sweep … --address 10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            pass
    except OSError as error:
        raise EngineUnavailableError(
            f"No Ray cluster answers at {where}: {error.strerror or error}",
            run=f"{_HEAD} --port {port}   # on {host}; and on each other machine: ray start --address={where}",
        ) from error


def explain(where: str, told: str) -> SeatrialError:
    """Ray's own words → what failed and what to do."""
    if "ersion mismatch" in told:
        versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", told)
        theirs, ours = (versions + [("?", "?")] * 2)[:2]
        part = "Ray" if theirs[0] != ours[0] else "Python"
        fix = f"pip install 'ray[tune]=={theirs[0]}'" if part == "Ray" else f"uv venv --python {theirs[1]}"
        return UsageError(
            f"The cluster runs Ray {theirs[0]} on Python {theirs[1]}, and here are Ray {ours[0]} on Python {ours[1]}",
            cause="Ray passes Python objects between machines: both versions must be the same on all of them",
            run=fix,
        )
    if "uthenticat" in told or "token" in told.lower():
        return UsageError(
            f"The Ray cluster at {where} wants a token that this machine does not have",
            run="scp HEAD:.ray/auth_token ~/.ray/auth_token && export RAY_AUTH_MODE=token",
        )
    if where == "auto" or "any running Ray" in told:
        return EngineUnavailableError(
            "No Ray cluster runs on this machine",
            cause="The searcher's machine must be one of the cluster's nodes; it need not run trials",
            run=f"{_HEAD}   # or join one: ray start --address=HEAD:6379 --num-cpus 0",
        )
    if "IP address" in told or "node_ip_address" in told or "Failed to connect" in told:
        return EngineUnavailableError(
            f"This machine is no node of the Ray cluster at {where}, or is not let in",
            cause="The searcher's machine must be one of the cluster's nodes; it need not run trials",
            run=f"export RAY_AUTH_MODE=token; ray start --address={where} --num-cpus 0",
        )
    return EngineUnavailableError(f"Ray cannot be reached: {told.strip().splitlines()[0][:300]}", run="ray status")


def nodes() -> list[Node]:
    """The living ones."""
    import ray

    return [
        Node(
            one["NodeID"], one.get("NodeName") or one["NodeManagerAddress"], one["NodeManagerAddress"], one["Resources"]
        )
        for one in ray.nodes()
        if one["Alive"]
    ]


def needs_of(job: Job, found: Sequence[Node]) -> Needs:
    """What a trial takes.

    Raises:
        UsageError: the GPUs asked for are one machine's.
        CapacityError: no node has as many.
    """
    request, cpus = job.gpus, job.cpus or 1.0
    if request.kind == "devices" or request.profile is not None:
        raise UsageError(
            f"--gpus {request} names GPUs of one machine, and Ray chooses the node", run="seatrial sweep … --gpus 1"
        )
    if request.kind == "all":
        raise UsageError("--gpus all is another number on each node", run="seatrial sweep … --gpus 1")
    have = any(node.resources.get("GPU") for node in found)
    gpus = {"none": 0.0, "auto": float(have)}.get(request.kind, request.share or float(request.count or 0))
    needs = Needs(cpus, gpus)
    if not any(needs.fit(node) for node in found):
        shown = ", ".join(f"{node.name} {node.resources.get('GPU', 0):g}" for node in found)
        most_cpus = max((node.resources.get("CPU", 0.0) for node in found), default=0.0)
        if gpus and not any(node.resources.get("GPU", 0.0) >= gpus for node in found):
            raise CapacityError(
                f"A trial wants {gpus:g} GPU{'s' * (gpus != 1)}, and no node of the Ray cluster has as many",
                cause=f"GPUs that Ray counts: {shown}",
                run="ray start --address=HEAD:6379   # on a machine with GPUs; or: seatrial sweep … --gpus none",
            )
        raise CapacityError(
            f"A trial wants {cpus:g} CPUs, and no node of the Ray cluster has more than {most_cpus:g} with its GPUs",
            run=f"seatrial sweep … --cpus {max(1, int(most_cpus))}",
        )
    return needs


def check_nodes(found: Sequence[Node], needs: Needs, job: Job) -> None:
    """Every node that could be given a trial is able to run one. Raises EngineUnavailableError, naming the first."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    able = [node for node in found if needs.fit(node)]
    look = ray.remote(num_cpus=0, max_retries=0)(_looker())
    asked = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(
            seatrial.__version__, job.backend, bool(needs.gpus)
        )
        for node in able
    ]
    for node, reference in zip(able, asked, strict=True):
        try:
            told: dict[str, Any] = ray.get(reference, timeout=_LOOK_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise EngineUnavailableError(
                f"Node {node.words} of the Ray cluster cannot be asked: {_last_line(error)}",
                run="ray status",
            ) from error
        _refuse(node, told)


def _last_line(error: BaseException) -> str:
    """Of a traceback from another machine, what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it does not answer"


def _looker() -> Any:
    """What each node is asked. Made here, so that it travels whole: a node may have no seatrial to import it from."""

    def look(version: str, backend: str, gpus_wanted: bool) -> dict[str, Any]:
        import os
        import sys

        told: dict[str, Any] = {"python": sys.executable}
        try:
            import seatrial
        except ImportError as error:
            return {**told, "missing": str(error)}
        told["version"] = seatrial.__version__
        if seatrial.__version__ != version:
            return told
        from seatrial.backends import table
        from seatrial.errors import SeatrialError

        try:
            table.choose(backend, dict(os.environ), gpus_wanted=gpus_wanted)
        except SeatrialError as error:
            told.update(refused=error.message, cause=error.cause, run=error.run)
        return told

    look.__module__ = "__main__"
    return look


def _refuse(node: Node, told: Mapping[str, Any]) -> None:
    install = f"""ssh {node.address} "{told["python"]} -m pip install 'seatrial[ray]=={seatrial.__version__}'\""""
    if "missing" in told:
        raise EngineUnavailableError(
            f"Node {node.words} of the Ray cluster has no seatrial", cause=told["missing"], run=install
        )
    if told["version"] != seatrial.__version__:
        raise EngineUnavailableError(
            f"Node {node.words} of the Ray cluster has seatrial {told['version']}, and here is {seatrial.__version__}",
            run=install,
        )
    if "refused" in told:
        raise EngineUnavailableError(
            f"Node {node.words} of the Ray cluster cannot run a trial: {told['refused']}",
            cause=told["cause"],
            run=f"ssh {node.address} '{told['run'] or 'seatrial doctor'}'",
        )
