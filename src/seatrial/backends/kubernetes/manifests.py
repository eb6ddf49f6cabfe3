"""Manifests of a run: kinds of workload (a function and a table of kinds.toml each), the Service, and their YAML."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.backends.kubernetes import pod
from seatrial.backends.kubernetes.pod import Manifest
from seatrial.errors import UsageError
from seatrial.job.cluster import ClusterPlan, Kind
from seatrial.job.in_container import EXIT_POD_STOPPED, RUN_LABEL
from seatrial.job.own_workload import own_container_of, replicas
from seatrial.job.plan import Plan
from seatrial.system.project_files import own_table

#: The LocalQueue in which Kueue holds a workload back. Source: kueue.sigs.k8s.io/docs/tasks/run/jobs.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Name of the one replicated job of a JobSet, as Trainer's runtimes name theirs: part of the names of its pods.
REPLICATED_JOB = "node"
#: Names of the run's container: of a Job's pods, and as the two operators prescribe it.
JOB_CONTAINER, PYTORCH_CONTAINER, TRAINER_CONTAINER = "train", "pytorch", "node"
#: The wheel in a run's record that is handed over with the agent, for recipes in a ready image.
RECIPES = "recipes.whl"
#: etcd takes requests of 1.5 MiB, ConfigMaps of 1 MiB. Source: kubernetes.io/docs/concepts/configuration/configmap.
MAX_CONFIG_MAP_BYTES = 1 << 20
#: 128 + SIGKILL: out of memory, or a lost node; the agent could not report its end.
_KILLED = 137

#: Keys of a pod's spec, and of its container, that a patch of a TrainJob's runtime can set.
_PATCHED_POD = (
    "securityContext", "nodeSelector", "tolerations", "serviceAccountName", "imagePullSecrets",
    "terminationGracePeriodSeconds",
)  # fmt: skip
_PATCHED_CONTAINER = ("name", "securityContext")
#: Owner of our patch. Trainer's webhook requires a domain and a path (v2.3, plugins/jobset/jobset.go).
PATCH_MANAGER = "seatrial/run"


def cluster_manifests(plan: Plan, agent: Path, recipes: Path | None = None) -> list[Manifest]:
    """Return all objects of the run but its Secret, in the order of creation. Raises UsageError: too much code.

    ``agent``: its archive. ``recipes``: their wheel, handed over where the plan needs it and the file exists.
    """
    cluster = plan.cluster
    assert cluster is not None, "a plan for k8s has a cluster"
    binaries = {"agent.pyz": agent.read_bytes()}
    if cluster.recipes and recipes is not None and recipes.exists():
        binaries[RECIPES] = recipes.read_bytes()
    maps = pod.config_maps(cluster, binaries, agent_plan(plan))
    for config_map in maps:
        parts = [config_map.get("data"), config_map.get("binaryData")]
        size = sum(len(text) for part in parts for text in (part or {}).values())
        if size >= MAX_CONFIG_MAP_BYTES:
            message = f"{config_map['metadata']['name']} would hold {size:,} bytes, but a ConfigMap must be under 1 MiB"
            run = 'in seatrial.toml: [kubernetes] code = "image" and registry = "ghcr.io/me"'
            raise UsageError(message, cause="the script is too large to be handed over as a ConfigMap", run=run)
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        config_map["metadata"]["annotations"] = {"seatrial.content": digest[:16]}
    workloads = _own(cluster) if cluster.own else KINDS[cluster.kind].render(cluster)
    for workload in workloads if cluster.own is None else ():  # the user's was checked when it was planned
        pod.check_admission(workload, None)
    return [*maps, *pod.claim_template(cluster), *workloads]


def agent_plan(plan: Plan) -> str:
    """Return the part of plan.json that the agent reads: the rest describes the submitter's machine."""
    whole: dict[str, Any] = plan.model_dump(mode="json", include={"schema_version", "run_id", "injection", "agent"})
    return json.dumps(whole, indent=1)


def addresses(cluster: ClusterPlan) -> tuple[str, ...]:
    """Return ``HOST:PORT`` of every node, or of node 0 alone if the others have no name."""
    row = KINDS[cluster.kind]
    nodes = range(cluster.nodes if row.names_all else 1)
    return tuple(f"{row.host.format(name=cluster.name, node=node)}:{cluster.port}" for node in nodes)


# ------------------------------------------------------------------------------------------------- the kinds


def _own(cluster: ClusterPlan) -> list[Manifest]:
    """Render the user's own workload with the agent in front of its pods' commands, in which kubelets fill in names."""
    manifest: Manifest = copy.deepcopy(cluster.own or {})
    volumes, mounts = pod.agent_volumes(cluster)
    for template, _ in replicas(manifest):
        spec, container = template["spec"], own_container_of(template)
        spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), *mounts]
        container["args"] = ["--", *container["command"], *(container.get("args") or ())]
        container["command"] = list(cluster.command)
        meta = template["metadata"] = template.get("metadata") or {}
        meta["labels"] = {**(meta.get("labels") or {}), **cluster.labels}
        meta["annotations"] = {**(meta.get("annotations") or {}), pod.DEFAULT_CONTAINER: container["name"]}
    labels = {**(manifest["metadata"].get("labels") or {}), **cluster.labels}
    manifest["metadata"] |= {"namespace": cluster.namespace, "labels": labels}
    return [manifest]


def _job(cluster: ClusterPlan) -> list[Manifest]:
    """Render an Indexed Job and, for several pods, the headless Service through which they find each other."""
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # ranks meet before any of them is ready
        "selector": {RUN_LABEL: cluster.labels[RUN_LABEL]},
        "ports": [{"name": "rendezvous", "port": cluster.port}],
    }
    services = [pod.described(cluster, "Service", cluster.name, spec=service)] if cluster.nodes > 1 else []
    return [*services, _workload(cluster, "job", _indexed_spec(cluster))]


def _jobset(cluster: ClusterPlan) -> list[Manifest]:
    """Render a JobSet, which makes the Indexed Job and the Service of ``_job``.

    It has no failurePolicy: it fails when its Job fails, and a restart of the set would delete all pods and logs.
    Source: github.com/kubernetes-sigs/jobset v0.12.0, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml and
    pkg/webhooks/jobset_webhook.go.
    """
    job = _indexed_spec(cluster)
    ttl_s = job.pop("ttlSecondsAfterFinished")  # of the set: a Job that is gone before it would be made again
    job["template"]["spec"].pop("subdomain", None)  # the controller sets its own, which has the set's name
    jobs = [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": job}}]
    spec = {"network": {"enableDNSHostnames": True}, "ttlSecondsAfterFinished": ttl_s, "replicatedJobs": jobs}
    return [_workload(cluster, "jobset", spec)]


def _pytorchjob(cluster: ClusterPlan) -> list[Manifest]:
    """Render Kubeflow's PyTorchJob v1, a master and workers; the operator makes the Services itself.

    No backoffLimit, and no deadline: there the operator deletes pods and logs before it reports the failure.
    Source: github.com/kubeflow/trainer release-1.9, manifests/base/crds/kubeflow.org_pytorchjobs.yaml;
    kubeflow/training-operator v1.9.0 pkg/controller.v1/common/job.go, DeletePodsAndServices.
    """
    replicas = {"Master": _replica(cluster, 1)}
    if cluster.nodes > 1:
        replicas["Worker"] = _replica(cluster, cluster.nodes - 1)
    spec: Manifest = {
        "runPolicy": {
            "cleanPodPolicy": "None",  # a deleted pod has no log
            "ttlSecondsAfterFinished": cluster.ttl_s,
        },
        "pytorchReplicaSpecs": replicas,
    }
    if cluster.min_nodes is not None:
        bounds = {"minReplicas": cluster.min_nodes, "maxReplicas": cluster.nodes, "maxRestarts": cluster.restarts}
        spec["elasticPolicy"] = {**bounds, "rdzvBackend": "c10d"}
    return [_workload(cluster, "pytorchjob", spec)]


def _trainjob(cluster: ClusterPlan) -> list[Manifest]:
    """Render Kubeflow's TrainJob v2: the trainer, and a patch of its ClusterTrainingRuntime's pods.

    Source: github.com/kubeflow/trainer v2.3.0, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml.

    Raises UsageError for settings that a patch does not have.
    """
    _refuse_beyond_a_patch(cluster)
    spec = pod.pod_spec(cluster, TRAINER_CONTAINER)
    container = spec["containers"][0]
    trainer = {
        "image": cluster.image,
        "command": container["command"],
        "env": container["env"],
        "numNodes": cluster.nodes,
        "numProcPerNode": max(1, cluster.gpus),
        "resourcesPerNode": container["resources"],
    }
    inner = {key: spec[key] for key in _PATCHED_POD if key in spec}
    inner["volumes"], mounts = _one_volume_a_mount(spec["volumes"], container["volumeMounts"])
    inner["containers"] = [{**{key: container[key] for key in _PATCHED_CONTAINER}, "volumeMounts": mounts}]
    patched = {"template": {"spec": {"template": {"metadata": {"labels": dict(cluster.labels)}, "spec": inner}}}}
    runtime = {"template": {"spec": {"replicatedJobs": [{"name": "node", **patched}]}}}
    patch = {"manager": PATCH_MANAGER, "trainingRuntimeSpec": runtime}
    spec = {"runtimeRef": {"name": cluster.runtime}, "trainer": trainer, "runtimePatches": [patch]}
    return [_workload(cluster, "trainjob", spec)]


Render = Callable[[ClusterPlan], list[Manifest]]


class Workload(NamedTuple):
    """A kind of workload, as kinds.toml describes it, and what renders it."""

    api_version: str
    api_kind: str
    plural: str
    host: str
    rank_variable: str
    render: Render
    names_all: bool = True
    install: str | None = None


_ROWS = own_table(Path(__file__).with_name("kinds.toml"))
_RENDER: dict[Kind, Render] = {"job": _job, "jobset": _jobset, "pytorchjob": _pytorchjob, "trainjob": _trainjob}
KINDS: dict[Kind, Workload] = {kind: Workload(**_ROWS[kind], render=render) for kind, render in _RENDER.items()}


def _workload(cluster: ClusterPlan, kind: Kind, spec: Manifest) -> Manifest:
    queue, row = {QUEUE_LABEL: cluster.queue} if cluster.queue else {}, KINDS[kind]
    return pod.described(cluster, row.api_kind, cluster.name, row.api_version, queue, spec=spec)


# ------------------------------------------------------------------------------------------------- their parts


def _indexed_spec(cluster: ClusterPlan) -> Manifest:
    """Return the spec of a Job with a pod for each node."""
    spec = {"restartPolicy": "Never", **pod.pod_spec(cluster, JOB_CONTAINER)}
    if cluster.nodes > 1:
        spec["subdomain"] = cluster.name
    return {
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "completionMode": "Indexed",
        "backoffLimit": cluster.restarts * cluster.nodes,
        "ttlSecondsAfterFinished": cluster.ttl_s,
        **_failure_policy(cluster),
        "template": {"metadata": {"labels": dict(cluster.labels)}, "spec": spec},
    }


def _failure_policy(cluster: ClusterPlan) -> Manifest:
    """Return the rules by which a stopped pod is not a failure of the run, and one that failed by itself ends it.

    The agent's exit code separates them. A pod killed before it could report counts towards backoffLimit.
    """
    if not cluster.disruptions_free or not cluster.restarts:
        return {}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    stopped = _on_exit("Ignore", "In", EXIT_POD_STOPPED)
    failed = _on_exit("FailJob", "NotIn", _KILLED, EXIT_POD_STOPPED)
    return {"podFailurePolicy": {"rules": [disrupted, stopped, failed]}}


def _on_exit(action: str, operator: str, *codes: int) -> Manifest:
    """Return a rule on the exit code of the run's container. Older schemas require onPodConditions in every rule."""
    codes_of = {"containerName": JOB_CONTAINER, "operator": operator, "values": list(codes)}
    return {"action": action, "onExitCodes": codes_of, "onPodConditions": []}


def _replica(cluster: ClusterPlan, count: int) -> Manifest:
    """Return a group of a PyTorchJob's replicas, with ``count`` pods."""
    spec = pod.pod_spec(cluster, PYTORCH_CONTAINER)
    # The operator looks for the port by this name; its Service for the master carries it.
    spec["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": cluster.port}]
    return {
        "replicas": count,
        # ExitCode: a pod that ends with 128 or more, as killed and stopped ones do, is recreated; any other failure is
        # the job's, and its pod stays. OnFailure restarts the containers in the same pod.
        "restartPolicy": "ExitCode" if cluster.restarts else "Never",
        "template": {"metadata": {"labels": dict(cluster.labels)}, "spec": spec},
    }


def _refuse_beyond_a_patch(cluster: ClusterPlan) -> None:
    """Raise UsageError for settings that the patches of a TrainJob do not have."""
    beyond = (
        ("set priority_class", "priority_class", cluster.priority_class),
        ("set runtime_class", "runtime_class", cluster.runtime_class),
        ("claim GPUs", "resourceClaims", cluster.claim),
    )
    for act, field in ((act, field) for act, field, value in beyond if value):
        message = f"A TrainJob cannot {act}: its runtime does"
        run = "seatrial run … --kind job   # or put it into a TrainingRuntime of your own"
        raise UsageError(message, cause=f"runtimePatches of trainer.kubeflow.org/v1alpha1 have no {field}", run=run)
    claims = [mount.volume.value for mount in cluster.mounts if mount.volume.kind == "pvc"]
    if twice := next((claim for claim in claims if claims.count(claim) > 1), None):
        raise UsageError(
            f"A TrainJob can mount pvc:{twice} once, but both data and models lie on it",
            cause="a patch names a volume once, and a kubelet mounts a claim for one volume of a pod alone",
            run="seatrial run … --kind job   # or put data and models on claims of their own",
        )


def _one_volume_a_mount(volumes: list[Manifest], mounts: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """Return the pod with a volume for each mount, as a patch's ``volumeMounts`` is a map by the volume's name.

    A copy of a ConfigMap has the same files; each folder of an emptyDir gets an emptyDir of its own.
    """
    sources = {volume["name"]: volume for volume in volumes}
    made: list[Manifest] = []
    renamed: list[Manifest] = []
    for mount in mounts:
        name, earlier = mount["name"], sum(mount["name"] == one["name"] for one in mounts[: len(renamed)])
        copy = f"{name}-{earlier}" if earlier else name
        made.append({**sources[name], "name": copy})
        renamed.append({**mount, "name": copy})
    return made, renamed


def as_yaml(manifests: list[Manifest], *, whole: bool = True) -> str:
    """Return one YAML stream; without ``whole``, binary data is replaced by its size."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml's, ten times as fast
        """Writes texts of several lines as blocks, and no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, write_text)
    shown = manifests if whole else [_without_binaries(manifest) for manifest in manifests]
    return "---\n".join(yaml.dump(one, Dumper=Dumper, sort_keys=False, width=120) for one in shown)


def _without_binaries(manifest: Manifest) -> Manifest:
    if "binaryData" not in manifest:
        return manifest
    sizes = {key: f"({len(text):,} characters)" for key, text in manifest["binaryData"].items()}
    return {**manifest, "binaryData": sizes}
