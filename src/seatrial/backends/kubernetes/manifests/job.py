"""job: what every cluster has. An Indexed Job and a headless Service, or one Job a node before Kubernetes 1.24."""

from __future__ import annotations

from seatrial.backends.kubernetes.manifests.names import (
    NODE_LABEL,
    RUN_LABEL,
    Manifest,
    job_names,
    metadata,
    node_variable,
    workload_metadata,
)
from seatrial.backends.kubernetes.manifests.pod import pod_spec
from seatrial.job.cluster import ClusterPlan
from seatrial.job.plan import EXIT_POD_STOPPED

CONTAINER = "train"

#: 128 + SIGKILL: out of memory, or the node was lost; the agent had no word to say.
_KILLED = 137


def render(cluster: ClusterPlan) -> list[Manifest]:
    """The Service through which several pods find each other, and the Job or Jobs."""
    service = [_service(cluster)] if cluster.nodes > 1 else []
    if cluster.indexed:
        return [*service, _job(cluster, job_names(cluster)[0], indexed_spec(cluster))]
    return [*service, *(_single(cluster, node) for node in range(cluster.nodes))]


def _service(cluster: ClusterPlan) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, cluster.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks meet before any of them could be called ready
            "selector": {RUN_LABEL: cluster.labels[RUN_LABEL]},
            "ports": [{"name": "rendezvous", "port": cluster.port}],
        },
    }


def indexed_spec(cluster: ClusterPlan) -> Manifest:
    """The spec of a Job with a pod for each node."""
    return {
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "completionMode": "Indexed",
        "backoffLimit": cluster.restarts * cluster.nodes,
        "ttlSecondsAfterFinished": cluster.ttl_s,
        **_policy(cluster),
        "template": _template(cluster, {}, {}),
    }


def _single(cluster: ClusterPlan, node: int) -> Manifest:
    """The Job of one node: its pod has the name that the others look for."""
    name = job_names(cluster)[node]
    template = _template(cluster, {NODE_LABEL: str(node)}, {node_variable(cluster): str(node)})
    template["spec"]["hostname"] = name
    spec = {
        "backoffLimit": cluster.restarts,
        "ttlSecondsAfterFinished": cluster.ttl_s,
        **_policy(cluster),
        "template": template,
    }
    return _job(cluster, name, spec)


def _policy(cluster: ClusterPlan) -> Manifest:
    """A pod that was asked to end is no failure of the run, and one that failed by itself is not tried again.

    The agent tells them apart by its exit code. A pod that was killed without a word counts towards backoffLimit.
    """
    if not cluster.disruptions_free or not cluster.restarts:
        return {}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [disrupted, _on_exit("Ignore", "In", EXIT_POD_STOPPED)]
    rules.append(_on_exit("FailJob", "NotIn", _KILLED, EXIT_POD_STOPPED))
    return {"podFailurePolicy": {"rules": rules}}


def _on_exit(action: str, operator: str, *codes: int) -> Manifest:
    """A rule on the exit code of our container. The schemas of older versions require onPodConditions in every rule."""
    codes_of = {"containerName": CONTAINER, "operator": operator, "values": list(codes)}
    return {"action": action, "onExitCodes": codes_of, "onPodConditions": []}


def _template(cluster: ClusterPlan, labels: dict[str, str], env: dict[str, str]) -> Manifest:
    spec = {"restartPolicy": "Never", **pod_spec(cluster, CONTAINER, **env)}
    if cluster.nodes > 1:
        spec["subdomain"] = cluster.name
    return {"metadata": {"labels": {**cluster.labels, **labels}}, "spec": spec}


def _job(cluster: ClusterPlan, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": workload_metadata(cluster, name), "spec": spec}
