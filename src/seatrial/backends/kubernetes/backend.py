"""Backend k8s: pods of a cluster. The cluster's client is imported when a cluster is contacted."""

from __future__ import annotations

import shutil
import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

from seatrial.backends.base import Echo, EngineFacts, Handle, State, Traits, confirm, reported_end
from seatrial.backends.kubernetes.client import Cluster, configured, not_configured
from seatrial.backends.kubernetes.manifests import KINDS, RECIPES, cluster_manifests
from seatrial.backends.kubernetes.objects import OWNERS, end, path_of, pods_of, submit
from seatrial.backends.kubernetes.pending import is_of_run, reported_exit_code, waiting_for
from seatrial.backends.kubernetes.pod import Manifest, secret
from seatrial.backends.kubernetes.survey import newest, state_of, workload_state
from seatrial.errors import EngineError, SeatrialError, fallback
from seatrial.job.cluster import ClusterPlan
from seatrial.job.in_container import RUN_LABEL
from seatrial.job.plan import MAX_BYTES, EngineAddress, Plan
from seatrial.system import agent_archive, command
from seatrial.system.host import Host
from seatrial.system.records import Folder


class Kubernetes:
    """A cluster as a place to run."""

    name = "k8s"
    traits = Traits(
        "pods",
        frozenset({"limits", "image"}),
        ("{flags}: not on Kubernetes", "seatrial run … --on k8s --data pvc:NAME --models pvc:NAME   # without {typed}"),
        on_this_host=False,
    )
    images = None  # nodes have images, but do not report what is in them

    def __init__(self, host: Host, at: EngineAddress | None = None) -> None:
        """Set up a backend. ``at``: the cluster to find runs in, by the kubeconfig that they were submitted with."""
        self._host, self._at = host, at

    def bound_to(self, engine: EngineAddress) -> Kubernetes:
        files = {"KUBECONFIG": engine.credentials} if engine.credentials else {}
        return Kubernetes(self._host.with_env(files), engine)

    def facts(self) -> EngineFacts:
        """Check from files alone whether there is a cluster to contact. Its own facts are survey's."""
        source = configured(self._host)
        fix = None if source else "kubectl config get-contexts   # KUBECONFIG names another file"
        reason = source or not_configured(self._host)
        return EngineFacts(self.name, available=source is not None, reason=reason, fix=fix)

    def compile(self, plan: Plan) -> list[str]:
        return ["kubectl", "create", "--filename", "manifests.yaml"]

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        cluster_plan = _cluster_plan(plan)
        agent = agent_archive.build_for_pods(self._host.state_folder / "agent", plan.agent.stand_ins)
        manifests = cluster_manifests(plan, agent, run_dir / RECIPES)
        if cluster_plan.secrets:
            values = {name: self._host.secret(name) for name in cluster_plan.secrets}
            manifests.insert(0, secret(cluster_plan, values))
        cluster = self._cluster(cluster_plan.context, cluster_plan.namespace)
        made = submit(cluster, manifests, ours=cluster_plan.own is None)
        workload = next(manifest for manifest in made if manifest["kind"] in OWNERS)
        return self._handle(cluster_plan, workload, plan.run_id, run_dir, plan.engine)

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        plan = _cluster_plan(_read_plan(run_dir))
        cluster = self._cluster(plan.context, plan.namespace)
        if not (workloads := self._workloads(cluster, plan)):
            confirm("Cluster", self._at, cluster.address, "kubectl cluster-info")
            return None
        return self._handle(plan, workloads[0], run_id, run_dir, self._at)

    def _handle(
        self, plan: ClusterPlan, workload: Manifest, run_id: str, run_dir: Path, engine: EngineAddress | None
    ) -> Handle:
        return Handle(
            backend=self.name,
            id=plan.name,
            started=workload["metadata"]["uid"],
            run_id=run_id,
            run_dir=str(run_dir),
            framed=True,
            context=plan.context,
            namespace=plan.namespace,
            engine=engine,
        )

    def collect(self, handle: Handle, run_dir: Path, echo: Echo) -> AbstractContextManager[None]:
        from seatrial.backends.kubernetes.collect import collecting

        cluster, plan = self._of(handle)
        return collecting(cluster, plan.namespace, plan.labels[RUN_LABEL], run_dir, plan.nodes, echo)

    def state(self, handle: Handle) -> State:
        """Return ``gone`` if nothing is left of it and its agents did not report how it ended."""
        cluster, plan = self._of(handle)
        workloads = self._workloads(cluster, plan)
        pods = pods_of(cluster, plan)
        if not workloads and not pods:
            state = reported_end(handle.folder)
            if state.status == "gone":
                confirm("Cluster", handle.engine, cluster.address, "kubectl cluster-info")
            return state
        verdict, message = workload_state(workloads)
        if verdict == "failed" and not workloads:  # deleted, and its pods are ending
            verdict = "active" if any(not pod.ended for pod in pods) else "failed"
        state = state_of(pods, plan.nodes, verdict)
        if state.status == "exited" and verdict == "failed" and state.exit_code is None:
            code = reported_exit_code(self._workload_events(cluster, plan))  # its pods are gone
            return state._replace(exit_code=code, error=state.error or message)
        if state.status != "created" and not any(pod.unreachable for pod in pods):
            return state
        return state._replace(waiting=waiting_for(pods, plan.nodes, workloads, self._workload_events(cluster, plan)))

    @fallback([], on=SeatrialError)
    def _workload_events(self, cluster: Cluster, plan: ClusterPlan) -> list[dict[str, Any]]:
        """Return the events of what makes the run's pods, the oldest first; [] if they may not be read."""
        items = cluster.get(f"/api/v1/namespaces/{plan.namespace}/events")["items"]
        mine = [item for item in items if is_of_run(item.get("involvedObject") or {}, plan.name)]
        return sorted(mine, key=lambda item: str(item.get("lastTimestamp") or item.get("eventTime") or ""))

    def stop(self, handle: Handle, grace_s: float) -> None:
        self._end(handle, round(grace_s))

    def interrupt(self, handle: Handle) -> bool:
        return False

    def kill(self, handle: Handle) -> None:
        self._end(handle, 0)

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        cluster, plan = self._of(handle)
        running = [pod for pod in newest(pods_of(cluster, plan), plan.nodes).values() if pod.phase == "Running"]
        if not running:
            raise EngineError("No pod of the run is running", run="seatrial runs ls")
        pod = running[0]
        if not (interactive and sys.stdin.isatty()):
            out, err = sys.stdout.buffer.write, sys.stderr.buffer.write
            return cluster.call(cluster.execute(plan.namespace, pod.name, argv, out, err, container=pod.container))
        if shutil.which("kubectl") is None:
            message = "A terminal in a pod needs kubectl, which is not installed"
            raise EngineError(message, run=f"seatrial runs exec RUN -- {argv[0]} < /dev/null")
        context = ["--context", cluster.context] if cluster.context else []
        container = ["-c", pod.container] if pod.container else []
        words = ["kubectl", *context, "-n", plan.namespace, "exec", "-it", pod.name, *container, "--", *argv]
        return command.call_interactive(words).exit_code

    def shell(self, plan: Plan, run_dir: Path) -> int:
        """Refuse to open a shell: a pod is submitted, not held by a terminal. Raises EngineError."""
        cause = "the cluster manages pods; open a shell in a running run instead"
        raise EngineError("shell is not supported on Kubernetes", cause=cause, run="seatrial runs exec RUN -- bash")

    def remove(self, handle: Handle) -> None:
        cluster, plan = self._of(handle)
        for path in self._own(cluster, plan):
            cluster.delete(path)

    # --------------------------------------------------------------- the parts

    def _cluster(self, context: str | None, namespace: str | None) -> Cluster:
        return _connection(tuple(sorted(self._host.env.items())), context, namespace)

    def _of(self, handle: Handle) -> tuple[Cluster, ClusterPlan]:
        return self._cluster(handle.context, handle.namespace), _cluster_plan(_read_plan(handle.folder))

    def _workloads(self, cluster: Cluster, plan: ClusterPlan) -> list[dict[str, Any]]:
        """Return the plan's workloads that are not being deleted."""
        return [one for one in self._own(cluster, plan).values() if "deletionTimestamp" not in one["metadata"]]

    def _own(self, cluster: Cluster, plan: ClusterPlan) -> dict[str, dict[str, Any]]:
        """Return path → the workload, if it carries this run's label: one of the same name may be another's."""
        kind = KINDS[plan.kind].api_kind
        path = path_of({"kind": kind, "metadata": {"name": plan.name, "namespace": plan.namespace}})
        found = cluster.find(path)
        is_ours = found is not None and found["metadata"].get("labels", {}).get(RUN_LABEL) == plan.labels[RUN_LABEL]
        return {path: found} if found is not None and is_ours else {}

    def _end(self, handle: Handle, grace_s: int) -> None:
        """Collect the pods' last output while they end."""
        cluster, plan = self._of(handle)
        with self.collect(handle, handle.folder, lambda line: None):
            end(cluster, plan, list(self._own(cluster, plan)), grace_s)


@lru_cache(maxsize=8)
def _connection(variables: tuple[tuple[str, str], ...], context: str | None, namespace: str | None) -> Cluster:
    """Keep one connection for each cluster and process: signing in costs more than most requests."""
    return Cluster(Host(dict(variables)), context, namespace)


def _cluster_plan(plan: Plan) -> ClusterPlan:
    assert plan.cluster is not None, "a plan for k8s has a cluster"
    return plan.cluster


def _read_plan(run_dir: Path) -> Plan:
    """Read the run's plan. Raises EngineError for a plan of another version of seatrial."""
    delete = f"kubectl delete job,configmap,service -l {RUN_LABEL}={run_dir.name}"
    return Folder(run_dir).get("plan.json", Plan, max_bytes=MAX_BYTES, run=delete)
