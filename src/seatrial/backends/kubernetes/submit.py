"""Making a run's objects: tried first, made in order, owned by the workload, and all taken back when one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.manifests.names import Manifest, metadata, secret_name
from seatrial.backends.kubernetes.manifests.render import RESOURCES
from seatrial.errors import SeatrialError
from seatrial.job.cluster import ClusterPlan

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: Kinds that own the others; deleting them deletes all.
OWNERS = ("Job", "PyTorchJob", "TrainJob", "JobSet")


def secret_manifest(cluster: ClusterPlan, values: Mapping[str, str]) -> Manifest:
    """The run's secrets. Made at the last moment and never printed."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(cluster, secret_name(cluster)),
        "stringData": dict(values),
    }


def path_of(manifest: Manifest, *, named: bool = True) -> str:
    """The API path of an object, or of the collection it is made in."""
    base, plural = RESOURCES[manifest["kind"]]
    if manifest["kind"] == "ResourceClaimTemplate":  # its version differs from cluster to cluster
        base = f"/apis/{manifest['apiVersion']}"
    path = f"{base}/namespaces/{manifest['metadata']['namespace']}/{plural}"
    return f"{path}/{manifest['metadata']['name']}" if named else path


def submit(cluster: Cluster, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Create the manifests after a dry run of each; what the server made of them.

    Raises SeatrialError with the server's words; nothing is left on the cluster then.
    """
    for manifest in manifests:
        cluster.create(path_of(manifest, named=False), manifest, dry_run=True)
    made: list[Manifest] = []
    try:
        for manifest in manifests:
            made.append(cluster.create(path_of(manifest, named=False), manifest) | {"kind": manifest["kind"]})
        owners = [_owner(manifest) for manifest in made if manifest["kind"] in OWNERS]
        for manifest in made:
            if manifest["kind"] not in OWNERS:
                cluster.patch(path_of(manifest), {"metadata": {"ownerReferences": owners}})
    except BaseException:
        withdraw(cluster, made)
        raise
    return made


def withdraw(cluster: Cluster, made: Sequence[Manifest]) -> None:
    """Delete what was made, the workload first. What cannot be deleted does not hide the error that led here."""
    for manifest in reversed(made):
        try:
            cluster.delete(path_of(manifest))
        except SeatrialError:
            continue


def _owner(manifest: Manifest) -> Manifest:
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "name": manifest["metadata"]["name"],
        "uid": manifest["metadata"]["uid"],
    }
