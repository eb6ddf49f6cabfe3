"""GPUs that each pod claims by Dynamic Resource Allocation, instead of a device plugin's resource."""

from __future__ import annotations

from seatrial.backends.kubernetes.devices import DRIVER
from seatrial.backends.kubernetes.manifests.names import Manifest, claim_name, metadata
from seatrial.job.cluster import ClusterPlan

#: Name of the claim in a pod, and of the one request in it.
_NAME = "gpus"


def claim_template(cluster: ClusterPlan) -> list[Manifest]:
    """The ResourceClaimTemplate of which the cluster makes a claim for each pod; nothing where none is planned.

    Source: resource.k8s.io in the API's OpenAPI document; v1beta1 has no level ``exactly``.
    """
    claim = cluster.claim
    if claim is None:
        return []
    wanted: Manifest = {"deviceClassName": claim.device_class, "allocationMode": "ExactCount", "count": cluster.gpus}
    if claim.profile is not None:
        wanted["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '{claim.profile}'"}}]
    request = {"name": _NAME, **wanted} if claim.api == "v1beta1" else {"name": _NAME, "exactly": wanted}
    return [
        {
            "apiVersion": f"resource.k8s.io/{claim.api}",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata(cluster, claim_name(cluster)),
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    ]


def pod_claims(cluster: ClusterPlan) -> list[Manifest]:
    """A pod's ``resourceClaims``."""
    return [{"name": _NAME, "resourceClaimTemplateName": claim_name(cluster)}] if cluster.claim else []
