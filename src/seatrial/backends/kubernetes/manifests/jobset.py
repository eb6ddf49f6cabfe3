"""jobset: a JobSet, which makes the Indexed Job of the ``job`` kind and the Service through which its pods meet.

Source: github.com/kubernetes-sigs/jobset v0.12.0, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml and
pkg/webhooks/jobset_webhook.go.
"""

from __future__ import annotations

from seatrial.backends.kubernetes.manifests.job import indexed_spec
from seatrial.backends.kubernetes.manifests.names import REPLICATED_JOB, Manifest, workload_metadata
from seatrial.job.cluster import ClusterPlan


def render(cluster: ClusterPlan) -> list[Manifest]:
    """The JobSet of one Job.

    Without a failurePolicy the JobSet fails when its Job fails, and the Job counts and replaces pods as it does alone:
    a restart of the whole set would delete all pods with their logs and give up the GPUs of those that are well.
    """
    job = indexed_spec(cluster)
    ttl_s = job.pop("ttlSecondsAfterFinished")  # of the set: a Job that is gone before it would be made again
    job["template"]["spec"].pop("subdomain", None)  # the controller sets its own, which has the set's name
    spec: Manifest = {
        "network": {"enableDNSHostnames": True},
        "ttlSecondsAfterFinished": ttl_s,
        "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": job}}],
    }
    named = workload_metadata(cluster, cluster.name)
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": named, "spec": spec}]
