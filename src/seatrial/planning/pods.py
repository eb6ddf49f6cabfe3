"""Plan the pods of a run on a cluster: their workload, contents and variables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace

from seatrial.backends.containers.run_options import read_env_file
from seatrial.backends.kubernetes.manifests import KINDS, addresses
from seatrial.backends.kubernetes.pod import MANAGED_BY, check_admission
from seatrial.backends.kubernetes.survey import ClusterFacts, survey
from seatrial.errors import EngineUnavailableError, UsageError
from seatrial.job import in_container
from seatrial.job.cluster import POD_CONFIG, ClusterPlan
from seatrial.job.model import Job
from seatrial.job.own_workload import OwnWorkload, env_of, own_container_of, replicas, volume_kinds
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.reading.file_calls import Write
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.planning import pod_contents
from seatrial.planning.container.env import without_login, without_models, without_steering, without_variables
from seatrial.planning.container.limits import memory_warnings, ray_env, shm_limit
from seatrial.planning.container.outside import WRITABLE
from seatrial.planning.host import HostFacts
from seatrial.planning.launcher import restarts
from seatrial.planning.pod_contents import Code, PodGpus, Volumes
from seatrial.planning.secrets import without_secrets
from seatrial.planning.site import ClusterSite, Meeting, Parts, Places, Site, target_argv
from seatrial.stack.machine import parse_target
from seatrial.system.host import Host

#: The pod's user where the submitter is root: no image needs one, and clusters refuse root.
DEFAULT_UID = 1000

#: Pods of a Job that may fail. Source: kubernetes pkg/apis/batch/v1/defaults.go.
_BACKOFF_LIMIT = 6

_MODELS_END = "Models are stored in the pod and deleted with it: --models pvc:NAME keeps them"

#: Told to scripts that can go on from their own run's checkpoints, since a pod that comes back runs the same command.
GO_ON_VARIABLE = "SEATRIAL_GO_ON"

#: For a store of the ranks' own: in torchrun's, a later node waits for an unwritten address. Seen with torch 2.13:
#: next_rendezvous of dynamic_rendezvous.py writes it in the first round only.
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def cluster_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Plan the pods of a run. Raises SeatrialError: a request cannot be met on this cluster."""
    assert site.cluster is not None, "a place on a cluster is given what the cluster has"
    if job.own is not None:
        return _own_parts(job, job.own, site, script)
    _refuse_folders(job)
    facts = site.cluster.facts
    gpus = pod_contents.pod_gpus(job, facts)
    kind = job.kubernetes.kind
    image, image_choices = pod_contents.cluster_image(job, site, script, gpus)
    image, code = pod_contents.project_code(job, script, image)
    if image.build and job.kubernetes.registry:
        image = image.changed(tag=f"{job.kubernetes.registry}/{image.tag.removeprefix('seatrial/')}")
    volumes = pod_contents.volumes_of(job, site.run_id)
    pod_env, target_env = without_steering(_env(job, volumes.places, site.host))
    all_env = {**image.env, **pod_env, **target_env}
    tracker_env, tracker_choices = without_login(job, script, all_env, site.host, image.context_texts)
    cluster = _pods(job, site, gpus, image, code, volumes, pod_env)
    kept = {in_container.CONTAINER_MODELS: volumes.models.lasting}
    lost = pod_contents.lost_writes(script, job.folder_inside, kept, WRITABLE)
    return Parts(
        volumes.places,
        *target_argv(job.target, image, image.python or "python3", volumes.places),
        gpus=gpus.plan,
        keeps_checkpoints=volumes.models.lasting,
        meeting=_meeting(job, cluster),
        env={
            GO_ON_VARIABLE: "1",
            **tracker_env,
            **target_env,
            **({"PYTHONPATH": f"{POD_CONFIG}/recipes.whl"} if cluster.recipes else {}),
            **({_OWN_STORE: "1"} if cluster.min_nodes is not None else {}),
            **ray_env(script.ray_evidence, cluster.shm_bytes, all_env),
        },
        image=image,
        cluster=cluster,
        choices=(
            site.cluster.seen,
            Choice(what="kind", value=kind, reason=f"[kubernetes] kind, {KINDS[kind].api_kind}"),
            gpus.choice,
            code.choice,
            _shm(job, gpus.plan.count)[1],
            _restarts_choice(cluster.restarts, volumes, lost=bool(lost)),
            *image_choices,
            *tracker_choices,
        ),
        warnings=(
            *gpus.warnings,
            *code.warnings,
            *pod_contents.gpu_memory_warnings(job, gpus.facts),
            *_workload_warnings(job, facts, image),
            *(without_models(script, all_env, (), site.host) if image.build else ()),
            *without_variables(job, script, all_env, site.host),
            *_file_warnings(script, volumes, lost, build=image.build),
            *(pod_contents.visible_warnings("-e", job.env) if gpus.plan.count else ()),
            *pod_contents.volume_warnings(volumes.models, job.kubernetes.data, facts),
            *memory_warnings(job),
        ),
    )


def _file_warnings(script: ScriptFacts, volumes: Volumes, lost: list[Write], *, build: bool) -> Iterator[str]:
    """Yield what no volume has or keeps; another's image may have what the script reads."""
    named = script if build else replace(script, reads=())
    held = [*WRITABLE, *(mount.target for mount in volumes.mounts if mount.volume.lasting)]
    by_data = f"--data pvc:NAME mounts one at {in_container.CONTAINER_DATA}"
    by_models = f"save it below {in_container.CONTAINER_MODELS}, which --models pvc:NAME keeps"
    yield from pod_contents.file_warnings(named, held, by_data, lost, by_models)
    yield from [] if lost or volumes.models.lasting else [_MODELS_END]


def _restarts_choice(again: int, volumes: Volumes, *, lost: bool) -> Choice:
    what = f"only what lies below {in_container.CONTAINER_MODELS} survives" if lost else "checkpoints survive"
    survive = f"{what} a pod on {volumes.models}"
    from_scratch = "a restarted pod would start from scratch: no volume keeps checkpoints"
    return Choice(what="restarts", value=str(again or "none"), reason=survive if again else from_scratch)


def _agent_command(image: ImagePlan) -> tuple[str, ...]:
    python = (image.python or "python3", *in_container.AGENT_PYTHON_FLAGS)
    return (*python, f"{POD_CONFIG}/agent.pyz", f"{POD_CONFIG}/plan.json")


def _labels(job: Job, run_id: str) -> dict[str, str]:
    return {MANAGED_BY: "seatrial", in_container.RUN_LABEL: run_id, **({"seatrial.name": job.name} if job.name else {})}


def _own_parts(job: Job, own: OwnWorkload, site: Site, script: ScriptFacts) -> Parts:
    """Plan a workload of the user's own: its pods start the agent, and the agent starts their command."""
    assert site.cluster is not None and job.image.ready is not None, "the file names an image"
    check_admission(own.manifest, own.file)
    facts, template, spec = site.cluster.facts, replicas(own.manifest)[0][0], own.manifest["spec"]
    gpus, kind = pod_contents.pod_gpus(job, facts), job.kubernetes.kind
    is_python = re.fullmatch(r"(?:.*/)?python(?:3(?:\.\d+)?)?", own.argv[0]) is not None
    image = ImagePlan(tag=job.image.ready, build=False, python=own.argv[0] if is_python else "python3")
    folder = own_container_of(template).get("workingDir") or "."  # the image's, where a pod's first process starts
    cluster = ClusterPlan(
        name=own.manifest["metadata"]["name"],
        kind=kind,
        own=own.manifest,
        context=facts.context,
        namespace=facts.namespace,
        nodes=job.nodes,
        gpus=gpus.plan.count,
        gpu_resource=job.kubernetes.gpu_resource,
        shm_bytes=0,
        image=image.tag,
        command=_agent_command(image),
        workdir=folder,
        secrets=job.secrets,
        restarts=spec.get("backoffLimit", (spec.get("runPolicy") or {}).get("backoffLimit", _BACKOFF_LIMIT)),
        labels=_labels(job, site.run_id),
    )
    as_it_is = Choice(what="kind", value=kind, reason=f"{own.file}, as it is, with the agent before its command")
    return Parts(
        places=Places(project=folder, run=in_container.CONTAINER_RUN, data=None, models=None, resume=None),
        argv=own.argv,
        script=None,
        gpus=gpus.plan,
        meeting=Meeting(job.nodes, node_rank_variable=KINDS[kind].rank_variable) if job.nodes > 1 else Meeting(),
        image=image,
        cluster=cluster,
        choices=(site.cluster.seen, as_it_is, gpus.choice),
        warnings=(*gpus.warnings, *facts.unread, *_own_warnings(job, own, facts, script)),
    )


def _own_warnings(job: Job, own: OwnWorkload, facts: ClusterFacts, script: ScriptFacts) -> Iterator[str]:
    """Yield what is wrong in the file: its image, its variables, its volumes."""
    template = replicas(own.manifest)[0][0]
    container, kinds = own_container_of(template), volume_kinds(template)
    machine = pod_contents.cluster_machine(facts, template["spec"].get("nodeSelector") or {})
    machine = parse_target(job.image.target) if job.image.target else machine
    from seatrial.images.lint.check import image_warnings  # few jobs are of one's own file

    yield from image_warnings(container["image"], machine if job.gpus.kind != "none" else None, pulled=True)
    if job.gpus.kind != "none":
        yield from pod_contents.visible_warnings(f"{own.file} sets", env_of(container))
    if paths := ", ".join(path for path, kind in kinds.items() if kind == "hostPath"):
        yield f"{paths}: a hostPath is a folder of the pod's node; every node reaches a persistentVolumeClaim"
    lost = pod_contents.lost_writes(script, container.get("workingDir") or "/", kinds, ("/tmp", "/dev", "/proc"))
    mounted = f"the file mounts {', '.join(kinds) or 'none'}"
    yield from pod_contents.file_warnings(script, list(kinds), mounted, lost, "mount a persistentVolumeClaim there")


#: Options that pods have as they were given.
_AS_GIVEN = ("node_selector", "tolerations", "priority_class", "runtime_class", "queue", "runtime", "service_account",
             "image_pull_secrets", "min_nodes", "requests", "ttl_s")  # fmt: skip


def _pods(
    job: Job, site: Site, gpus: PodGpus, image: ImagePlan, code: Code, volumes: Volumes, env: dict[str, str]
) -> ClusterPlan:
    assert site.cluster is not None, "pods are of a cluster"
    options, facts = job.kubernetes, site.cluster.facts
    for flag, name, limit in (("--cpus", "cpu", job.cpus), ("--memory", "memory", job.memory_bytes)):
        if limit is not None and float(options.requests.get(name, 0)) > limit:
            message = f"[kubernetes] requests has more {name} than {flag} allows"
            raise UsageError(message, cause="a request is at most its limit", run="seatrial run --help")
    return ClusterPlan(
        name=f"seatrial-{site.run_id}",
        kind=options.kind,
        disruptions_free=facts.disruptions_free,
        context=facts.context,
        namespace=facts.namespace,
        nodes=job.nodes,
        gpus=gpus.plan.count,
        gpu_resource=pod_contents.pod_resource(job),
        claim=gpus.claim,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        shm_bytes=_shm(job, gpus.plan.count)[0],
        shm_requested=job.shm_bytes is not None and job.memory_bytes is None,
        image=image.tag,
        command=_agent_command(image),
        workdir=job.folder_inside,
        env=env,
        secrets=job.secrets,
        recipes=job.target.kind == "recipe" and not image.build,
        code=code.way,
        files=code.files,
        mounts=volumes.mounts,
        run_mount=volumes.run,
        run_in_models=volumes.places.run != in_container.CONTAINER_RUN,
        read_only_root=not job.writable and code.way != "image",
        uid=options.uid or os.getuid() or DEFAULT_UID,
        restarts=restarts(job, keeps_checkpoints=volumes.models.lasting),
        grace_s=math.ceil(job.grace_s) + in_container.AGENT_GRACE_S,
        labels=_labels(job, site.run_id),
        **{name: getattr(options, name) for name in _AS_GIVEN},
    )


def survey_cluster(job: Job, host: HostFacts, *, offline: bool = False) -> ClusterSite:
    """Read the cluster's facts; ``offline``: plan for a current version where no cluster answers.

    Raises SeatrialError: no cluster answers, or it refuses.
    """
    from seatrial.backends.kubernetes.client import Cluster  # kr8s takes 80 ms to load

    options = job.kubernetes
    try:
        facts = survey(Cluster(host, options.context, options.namespace), pod_contents.pod_resource(job))
        seen = "read now"
    except EngineUnavailableError as error:
        if not offline:
            raise
        unread = f"No cluster answers ({error.message}): rendered for Kubernetes 1.26 and later"
        facts = ClusterFacts(namespace=options.namespace or "default", context=options.context, unread=(unread,))
        seen = "none responds"
    value = f"Kubernetes {facts.git_version}, namespace {facts.namespace}"
    return ClusterSite(facts, Choice(what="cluster", value=value, reason=seen))


def _workload_warnings(job: Job, facts: ClusterFacts, image: ImagePlan) -> Iterator[str]:
    options = job.kubernetes
    if job.nodes > 1 and options.kind != "pytorchjob" and not facts.indexed:
        follows = "its pods do not learn which node of the run they are, and the run fails at its start"
        yield f"Kubernetes {facts.git_version} has no Indexed Jobs (1.24 and later do), so {follows}"
    if options.kind == "trainjob":
        yield (
            f"The runtime {options.runtime} restarts a failed pod, 6 times unless it sets another limit, and a "
            "TrainJob cannot change the limit: a failure is reported late, and without a volume each new pod runs the "
            "whole script; use --kind job, or a [kubernetes] runtime whose podFailurePolicy has FailJob for every exit "
            "code but 137 and 143"
        )
    if options.queue is not None and not facts.kueue and facts.git_version != "unknown":
        yield f"The cluster has no Kueue, so --queue {options.queue} does nothing there: the run starts at once"
    yield from facts.unread
    if image.build and not options.registry:
        yield f"{image.tag} is not pushed: the nodes must share this engine's images; or set [kubernetes] registry"


def _meeting(job: Job, cluster: ClusterPlan) -> Meeting:
    if job.nodes == 1:
        return Meeting(min_nodes=cluster.min_nodes)
    kind, named = KINDS[cluster.kind], addresses(cluster)
    variable, workers = kind.rank_variable, named if kind.names_all else ()
    return Meeting(job.nodes, cluster.min_nodes, node_rank_variable=variable, rendezvous=named[0], workers=workers)


def _refuse_folders(job: Job) -> None:
    """Refuse this machine's folders, which pods cannot mount, and a ``min_nodes`` above the nodes."""
    for flag, folder in (("--data", job.data), ("--models", job.models)):
        if folder is not None:
            message = f"{flag} {folder.source} is a folder of this machine, which pods cannot mount"
            cause = "data and models need a cluster volume: a claim, or a folder on the node"
            run = f"seatrial run … {flag} pvc:NAME   # or hostpath:/FOLDER on a single-machine cluster"
            raise UsageError(message, cause=cause, run=run)
    if job.kubernetes.min_nodes is not None and job.kubernetes.min_nodes > job.nodes:
        problem = f"min_nodes is {job.kubernetes.min_nodes}, more than the {job.nodes} nodes"
        raise UsageError(problem, run="seatrial run … --nodes N")


def _env(job: Job, places: Places, host: Host) -> dict[str, str]:
    """Return the container's variables. NCCL and Gloo report errors alone."""
    ours = {"NCCL_DEBUG": "WARN"} if job.nodes > 1 else {}
    from_files = {name: value for path in job.env_files for name, value in read_env_file(path, host).items()}
    return without_secrets({**ours, **places.env(), **from_files, **job.env}, job)


def _shm(job: Job, gpus: int) -> tuple[int, Choice]:
    """Return the size of /dev/shm, an emptyDir in memory that counts as the pod's, and the reason."""
    if job.memory_bytes is not None:
        counts = f"part of the pod's {format_bytes(job.memory_bytes)}"
    elif job.shm_bytes is not None:
        counts = "requested on top of the pod's memory"
    else:
        counts = "what is used of it counts as the pod's memory"
    return shm_limit(job, gpus, memory_bytes=job.memory_bytes, counts=counts)
