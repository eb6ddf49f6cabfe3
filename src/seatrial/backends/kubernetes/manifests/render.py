"""A plan as manifests, in the order in which they are made. To add a kind: a file beside this one, and a row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.backends.kubernetes.manifests import job, jobset, pytorchjob, trainjob
from seatrial.backends.kubernetes.manifests.claim import claim_template
from seatrial.backends.kubernetes.manifests.names import Manifest
from seatrial.backends.kubernetes.manifests.pod import config_maps
from seatrial.errors import UsageError
from seatrial.job.cluster import ClusterPlan, Kind
from seatrial.job.plan import Plan

#: etcd takes requests of 1.5 MiB, ConfigMaps of 1 MiB. Source: kubernetes.io/docs/concepts/configuration/configmap.
MAX_CONFIG_MAP_BYTES = 1 << 20

WORKLOADS: dict[Kind, Callable[[ClusterPlan], list[Manifest]]] = {
    "job": job.render,
    "pytorchjob": pytorchjob.render,
    "trainjob": trainjob.render,
    "jobset": jobset.render,
}

#: Kind of workload → kind of the API's object.
API_KINDS: dict[Kind, str] = {"job": "Job", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob", "jobset": "JobSet"}

#: Where each kind's objects are in the API: (base path, plural).
RESOURCES: dict[str, tuple[str, str]] = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Job": ("/apis/batch/v1", "jobs"),
    "PyTorchJob": ("/apis/kubeflow.org/v1", "pytorchjobs"),
    "TrainJob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
}


def render(plan: Plan, binaries: Mapping[str, bytes]) -> list[Manifest]:
    """Everything of the run but its secrets, whose values no manifest holds.

    Args:
        binaries: ``agent.pyz`` and, for recipes in a ready image, ``recipes.whl``.

    Raises UsageError for code too large.
    """
    cluster = plan.cluster
    assert cluster is not None, "a plan for k8s has a cluster"
    maps = config_maps(cluster, binaries, agent_plan(plan))
    for config_map in maps:
        size = sum(map(len, config_map.get("data", {}).values())) + sum(
            map(len, config_map.get("binaryData", {}).values())
        )
        if size >= MAX_CONFIG_MAP_BYTES:
            raise UsageError(
                f"{config_map['metadata']['name']} would hold {size:,} bytes, but a ConfigMap must be under 1 MiB",
                cause="the script is too large to be handed over as a ConfigMap",
                run='seatrial run … with [kubernetes] code = "image" and registry = "ghcr.io/me"',
            )
        digest = hashlib.sha256(json.dumps([config_map.get("data"), config_map.get("binaryData")]).encode())
        config_map["metadata"]["annotations"] = {"seatrial.content": digest.hexdigest()[:16]}
    return [*maps, *claim_template(cluster), *WORKLOADS[cluster.kind](cluster)]


def agent_plan(plan: Plan) -> str:
    """The part of plan.json that the agent reads: the rest tells of the submitter's machine."""
    whole: dict[str, Any] = plan.model_dump(mode="json", include={"schema_version", "run_id", "injection", "agent"})
    return json.dumps(whole, indent=1)
