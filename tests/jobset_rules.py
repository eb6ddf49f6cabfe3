"""Rules of JobSet's CRD and webhook that our manifests could break: restated, not copied.

Sources: kubernetes-sigs/jobset v0.5.0 and v0.12.0, api/jobset/v1alpha2/jobset_types.go (keys, and the lists that are
maps), pkg/webhooks/jobset_webhook.go (names of Jobs and pods). The oldest that has a time to live, 0.5, is the measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_SPEC = {"replicatedJobs", "network", "successPolicy", "failurePolicy", "suspend", "ttlSecondsAfterFinished"}
_NETWORK = {"enableDNSHostnames", "subdomain"}
_REPLICATED = {"name", "replicas", "template"}
_FAILURE = {"maxRestarts"}
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
_LONGEST = 63
_SUFFIX = "-abcde"  # that the Job controller puts behind a pod's name


def jobset_violations(manifest: dict[str, Any], of_job: Callable[[dict[str, Any]], list[str]]) -> Iterator[str]:
    """Args: of_job: what is wrong with a Job."""
    if manifest["apiVersion"] != "jobset.x-k8s.io/v1alpha2":
        yield f"apiVersion: {manifest['apiVersion']}"
    spec = manifest["spec"]
    yield from _unknown("spec", spec, _SPEC)
    yield from _unknown("spec.network", spec.get("network", {}), _NETWORK)
    yield from _unknown("spec.failurePolicy", spec.get("failurePolicy", {}), _FAILURE)
    jobs = spec.get("replicatedJobs", [])
    names = [job.get("name") for job in jobs]
    yield from (f"spec.replicatedJobs: duplicate name: {name}" for name in set(names) if names.count(name) > 1)
    if not jobs:
        yield "spec.replicatedJobs: none"
    for job in jobs:
        yield from _unknown("spec.replicatedJobs", job, _REPLICATED)
        yield from _unknown("spec.replicatedJobs.template", job["template"], {"metadata", "spec"})
        template = job["template"]
        replicas, pods = job.get("replicas", 1), template["spec"].get("completions", 1)
        name = f"{manifest['metadata']['name']}-{job['name']}-{replicas - 1}"
        for whole in (name, f"{name}-{pods - 1}{_SUFFIX}"):
            if not _LABEL.fullmatch(whole) or len(whole) > _LONGEST:
                yield f"the name {whole} is not a DNS label"
        yield from of_job({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, **template})


def _unknown(path: str, given: dict[str, Any], known: set[str]) -> Iterator[str]:
    yield from (f"{path}: unknown key {key}" for key in given if key not in known)
