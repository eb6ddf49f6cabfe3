"""Which kind of workload a run becomes, by what the cluster has. Pure."""

from __future__ import annotations

from seatrial.backends.kubernetes.manifests.trainjob import mounted_twice
from seatrial.backends.kubernetes.survey import CONTROLLERS, OPERATORS, ClusterFacts
from seatrial.errors import UsageError
from seatrial.job.cluster import Kind, PodMount
from seatrial.job.cluster_config import ClusterOptions
from seatrial.job.model import Job
from seatrial.job.plan import Choice


def workload_kind(job: Job, facts: ClusterFacts, *, claims: bool = False) -> tuple[Kind, Choice]:
    """The kind, and why.

    Args:
        claims: the pods claim their GPUs.

    Raises UsageError when the operator of the kind asked for is not there.
    """
    asked = job.kubernetes.kind
    if asked == "auto":
        kind, reason = _auto(job, facts, claims)
    else:
        kind, reason = asked, f"--kind {asked}"
        if kind in OPERATORS and facts.git_version != "unknown" and kind not in facts.operators:
            group, plural, install = OPERATORS[kind]
            raise UsageError(
                f"The cluster has no {plural}.{group}",
                cause="its operator is not installed; --kind job needs none",
                run=f"{install}   # or: seatrial run … --kind job",
            )
    if kind == "job":
        reason += (
            "; an Indexed Job"
            if facts.indexed
            else f"; one Job per node, since {facts.git_version} has no Indexed Jobs"
        )
    return kind, Choice(what="kind", value=kind, reason=reason)


def _auto(job: Job, facts: ClusterFacts, claims: bool) -> tuple[Kind, str]:
    """The first kind that is there, that something acts on, that this user may create, and that serves this job."""
    passed_over: list[str] = []
    for kind in facts.operators:
        if kind in facts.idle:
            why_not = f"the CRD of {kind} is installed, but its controller is not"
        elif kind in facts.forbidden:
            why_not = f"you may not create {OPERATORS[kind][1]} in {facts.namespace}"
        elif kind == "trainjob" and (cannot := _beyond_a_trainjob(job.kubernetes, claims)):
            why_not = f"the cluster has the CRD of trainjob, but a TrainJob cannot {cannot}"
        elif kind == "jobset" and job.nodes == 1:
            why_not = "a JobSet is for several nodes"
        else:
            return kind, "; ".join([f"the cluster has the CRD of {kind}", *passed_over])
        passed_over.append(why_not)
    return "job", "; ".join(passed_over) or "no operator is installed"


def _beyond_a_trainjob(options: ClusterOptions, claims: bool) -> str | None:
    """What a TrainJob could not do of what is asked for, as a verb; its manifest refuses the same."""
    for flag, value in (("priority_class", options.priority_class), ("runtime_class", options.runtime_class)):
        if value:
            return f"set {flag}"
    if claims:
        return "claim GPUs"
    mounts = [PodMount(volume=volume, target="") for volume in (options.models, options.data) if volume is not None]
    claim = mounted_twice(mounts)
    return f"mount pvc:{claim} twice" if claim else None


def kind_warnings(kind: Kind, facts: ClusterFacts, runtime: str) -> tuple[str, ...]:
    warnings = []
    if kind in facts.idle:
        nobody = f"There is no Deployment {CONTROLLERS[kind]}, so a {kind} may never be processed"
        warnings.append(f"{nobody}; --kind job needs none")
    if kind == "trainjob" and facts.retries != 0:
        known = "once" if facts.retries == 1 else f"up to {facts.retries} times"
        times = "6 times unless it says otherwise" if facts.retries is None else known
        warnings.append(
            f"The runtime {runtime} starts again what failed, {times}, and a TrainJob cannot change that: a failure is "
            "told late, and in a new pod without a volume the script runs again; --kind job, or [kubernetes] runtime: "
            "one whose podFailurePolicy has FailJob for every exit code but 137 and 143"
        )
    return tuple(warnings)


def queue_warnings(queue: str | None, facts: ClusterFacts) -> tuple[str, ...]:
    """A label that nobody reads holds nothing back."""
    if queue is None or facts.kueue or facts.git_version == "unknown":
        return ()
    return (f"The cluster has no Kueue, so --queue {queue} does nothing there: the run starts at once",)
