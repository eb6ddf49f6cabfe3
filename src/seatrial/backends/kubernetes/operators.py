"""What an operator's kinds are good for here: whether this user may create them, and what their runtime does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.manifests.names import REPLICATED_JOB
from seatrial.backends.kubernetes.manifests.render import RESOURCES
from seatrial.errors import SeatrialError

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: How often a Job of its own accord tries again. Source: kubernetes.io/docs/concepts/workloads/controllers/job.
_BACKOFF_LIMIT = 6

#: Of our agent where the script failed (agent/attempts.py).
EXIT_FAILED = 1


async def may_create(cluster: Cluster, group: str, plural: str, namespace: str) -> bool:
    """Whether this user may create objects of a kind; yes where the cluster does not tell. Everybody may ask for
    themselves: kubernetes.io/docs/reference/access-authn-authz/authorization.
    """
    wanted = {"namespace": namespace, "verb": "create", "group": group, "resource": plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    try:
        answer = await cluster.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    except SeatrialError:
        return True
    return bool((answer.get("status") or {}).get("allowed", True))


async def runtimes_retries(cluster: Cluster, name: str) -> int | None:
    """``retries_of`` the ClusterTrainingRuntime of this name; None where it cannot be read, too."""
    try:
        runtime = await cluster.request("GET", f"{RESOURCES['TrainJob'][0]}/clustertrainingruntimes/{name}")
    except SeatrialError:  # not namespaced: the smallest Role cannot read it
        return None
    return retries_of(runtime)


def retries_of(runtime: Mapping[str, Any]) -> int | None:
    """How often a ClusterTrainingRuntime starts again what failed by itself: its Job a pod, or its JobSet the whole.

    None where it has no job that our TrainJobs patch.

    Source: backoffLimit of batch/v1, 6 where nothing is said; failurePolicy of jobset.x-k8s.io/v1alpha2.
    """
    spec = ((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}
    for job in spec.get("replicatedJobs") or []:
        if job.get("name") == REPLICATED_JOB:
            inner = (job.get("template") or {}).get("spec") or {}
            pods = 0 if _fails_at_once(inner) else inner.get("backoffLimit", _BACKOFF_LIMIT)
            return (int(pods) + 1) * (int((spec.get("failurePolicy") or {}).get("maxRestarts") or 0) + 1) - 1
    return None


def _fails_at_once(job: Mapping[str, Any]) -> bool:
    """Whether the Job's own rules end it at the exit code of a script that failed."""
    for rule in (job.get("podFailurePolicy") or {}).get("rules") or []:
        codes = rule.get("onExitCodes") or {}
        if codes and (EXIT_FAILED in codes.get("values", ())) == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "FailJob")
    return False
