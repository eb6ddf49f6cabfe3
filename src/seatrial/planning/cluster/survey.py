"""What a cluster has: asked now, or remembered for a plan that submits nothing."""

from __future__ import annotations

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.survey import ClusterFacts, survey
from seatrial.errors import EngineUnavailableError
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.planning.cluster import memory
from seatrial.planning.host import HostFacts
from seatrial.planning.site import ClusterSite


def survey_cluster(job: Job, host: HostFacts, *, offline: bool = False) -> ClusterSite:
    """Ask the cluster.

    Args:
        offline: nothing will be submitted: what is remembered of the cluster will do, and with an explicit kind none
            need answer.

    Raises SeatrialError: no cluster answers, or it refuses.
    """
    options = job.kubernetes
    if offline and (kept := memory.recall(options, host.environ, host.cache_folder)) is not None:
        facts, age_s = kept
        return ClusterSite(facts, _seen(facts, f"as of {age_s:.0f} s ago; run queries it again"))
    try:
        facts = survey(Cluster(host.environ, options.context, options.namespace), options.gpu_resource)
    except EngineUnavailableError as error:
        if not offline or options.kind == "auto":
            raise
        unread = f"No cluster answers ({error.message}): rendered for Kubernetes 1.26 and later"
        facts = ClusterFacts(namespace=options.namespace or "default", context=options.context, unread=(unread,))
        return ClusterSite(facts, _seen(facts, "none responds"))
    memory.remember(facts, options, host.environ, host.cache_folder)
    return ClusterSite(facts, _seen(facts, "queried just now"))


def _seen(facts: ClusterFacts, reason: str) -> Choice:
    return Choice(what="cluster", value=f"Kubernetes {facts.git_version}, namespace {facts.namespace}", reason=reason)
