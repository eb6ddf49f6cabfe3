"""What a cluster has: asked now, or remembered for a plan that submits nothing."""

from __future__ import annotations

from seatrial.backends.kubernetes.survey import OPERATORS, ClusterFacts, survey
from seatrial.errors import EngineUnavailableError, UsageError
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.planning.cluster import memory
from seatrial.planning.cluster.claims import gpu_way, pod_resource
from seatrial.planning.host import HostFacts
from seatrial.planning.site import ClusterSite


def survey_cluster(job: Job, host: HostFacts, *, offline: bool = False) -> ClusterSite:
    """Ask the cluster.

    Args:
        offline: nothing will be submitted: what is remembered of the cluster will do, and with an explicit kind none
            need answer.

    Raises SeatrialError: no cluster answers, or it refuses.
    """
    options = job.kubernetes.model_copy(update={"gpu_resource": pod_resource(job)})
    kept = memory.recall(options, host.environ, host.cache_folder) if offline else None
    if kept is not None and not lacks(job, kept[0]):
        facts, age_s = kept
        return ClusterSite(facts, _seen(facts, f"as of {age_s:.0f} s ago; run queries it again"))
    from seatrial.backends.kubernetes.client import Cluster  # 20 ms that a plan with facts remembered need not wait for

    try:
        facts = survey(Cluster(host.environ, options.context, options.namespace), options.gpu_resource, options.runtime)
    except EngineUnavailableError as error:
        if not offline or options.kind == "auto":
            raise
        unread = f"No cluster answers ({error.message}): rendered for Kubernetes 1.26 and later"
        facts = ClusterFacts(namespace=options.namespace or "default", context=options.context, unread=(unread,))
        return ClusterSite(facts, _seen(facts, "none responds"))
    memory.remember(facts, options, host.environ, host.cache_folder)
    return ClusterSite(facts, _seen(facts, "queried just now"))


def lacks(job: Job, facts: ClusterFacts) -> bool:
    """Whether what is asked for is not among these facts: a CRD or a node may have come since they were read."""
    options = job.kubernetes
    if options.kind in OPERATORS and (options.kind not in facts.operators or options.kind in facts.idle):
        return True
    if options.queue is not None and not facts.kueue:
        return True
    try:
        nodes = gpu_way(job, facts).facts.nodes
    except UsageError:  # what is claimed may have come since
        return True
    if nodes is None:
        return False
    fitting = [node for node in nodes if options.node_selector.items() <= node.labels.items()]
    if options.node_selector and not fitting:
        return True
    wanted = job.gpus.count or 0 if job.gpus.kind == "count" else 0
    return wanted > max((node.capacity for node in fitting), default=0)


def _seen(facts: ClusterFacts, reason: str) -> Choice:
    return Choice(what="cluster", value=f"Kubernetes {facts.git_version}, namespace {facts.namespace}", reason=reason)
