"""GPUs that pods claim by Dynamic Resource Allocation: which of NVIDIA's device classes there are, and how many devices
each node offers.

Source: kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation (resource.k8s.io/v1 is served from
1.34 on, v1beta1 and v1beta2 from 1.32 and 1.33 where they are turned on); github.com/kubernetes-sigs/
dra-driver-nvidia-gpu v25, deployments/helm (the classes) and cmd/gpu-kubelet-plugin/deviceinfo.go (the attributes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from seatrial.errors import SeatrialError
from seatrial.system.records import dataclass

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: Versions of the API that we can write, the best first.
VERSIONS = ("v1", "v1beta2", "v1beta1")
GROUP = "/apis/resource.k8s.io"

DRIVER = "gpu.nvidia.com"
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"

#: Of a whole GPU in ``Offer.counts``; a slice's is its profile, such as ``1g.10gb``.
WHOLE = "gpu"

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Offer:
    """What one node offers.

    Attributes:
        counts: WHOLE or a MIG profile → devices that can be allocated, also those that pods hold. Where slices are cut
            on demand, as many as would fit if no others were cut.
        gpu: ``product``, ``capability`` and ``driver`` of its GPUs, as far as told.
    """

    counts: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Claimable:
    """What a cluster has to claim.

    Attributes:
        api: version of resource.k8s.io to write, or None: there is none.
        classes: names of DeviceClasses; None: they may not be listed.
        offers: node → its offer; None: ResourceSlices may not be listed.
    """

    api: str | None = None
    classes: tuple[str, ...] | None = None
    offers: dict[str, Offer] | None = None


async def claimable(cluster: Cluster) -> Claimable:
    """Ask the cluster."""
    api = await served_version(cluster)
    if api is None:
        return Claimable()
    classes = await _items(cluster, f"{GROUP}/{api}/deviceclasses")
    if classes is None:  # slices are not namespaced, either
        return Claimable(api)
    slices = await _items(cluster, f"{GROUP}/{api}/resourceslices") if classes else []
    names = tuple(sorted(str(one["metadata"]["name"]) for one in classes))
    return Claimable(api, names, None if slices is None else read_slices(slices))


async def served_version(cluster: Cluster) -> str | None:
    """The best version of resource.k8s.io that the cluster has, or None. Everybody may ask for it."""
    try:
        found = await cluster.request("GET", GROUP)
    except SeatrialError:
        return None
    served = [str(one.get("version")) for one in found.get("versions") or []]
    return next((version for version in VERSIONS if version in served), None)


async def _items(cluster: Cluster, path: str) -> list[dict[str, Any]] | None:
    try:
        return list((await cluster.request("GET", path)).get("items") or [])
    except SeatrialError:  # not namespaced: the smallest Role cannot list them
        return None


def read_slices(items: Iterable[Object]) -> dict[str, Offer]:
    """Node → what NVIDIA's driver offers there. Pure.

    A pool is told in several slices and told anew with a higher generation; older ones are void. Devices that are
    tainted against new pods do not count.
    """
    specs = [item.get("spec") or {} for item in items]
    ours = [spec for spec in specs if spec.get("driver") == DRIVER and spec.get("nodeName")]
    newest: dict[str, int] = {}
    for spec in ours:
        name, generation = _pool(spec)
        newest[name] = max(generation, newest.get(name, 0))
    offers: dict[str, Offer] = {}
    seen: set[tuple[str, str]] = set()
    for spec in ours:
        pool, generation = _pool(spec)
        if generation < newest[pool]:
            continue
        offer = offers.setdefault(str(spec["nodeName"]), Offer())
        for device in spec.get("devices") or []:
            if (pool, str(device.get("name"))) not in seen:
                seen.add((pool, str(device.get("name"))))
                _add(offer, device)
    return offers


def _pool(spec: Object) -> tuple[str, int]:
    pool = spec.get("pool") or {}
    return str(pool.get("name")), int(pool.get("generation") or 0)


def _add(offer: Offer, device: Object) -> None:
    inner = device.get("basic") or device  # v1beta1 has one more level
    kind, profile = _attribute(inner, "type"), _attribute(inner, "profile")
    what = WHOLE if kind == "gpu" else profile if kind == "mig" else None
    if what is None:
        return
    told = {"product": "productName", "capability": "cudaComputeCapability", "driver": "driverVersion"}
    for key, name in told.items():
        if (value := _attribute(inner, name)) is not None:
            offer.gpu.setdefault(key, value)
    closed = any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in inner.get("taints") or [])
    offer.counts[what] = offer.counts.get(what, 0) + (not closed)


def _attribute(device: Object, name: str) -> str | None:
    """An attribute's value as text; the driver's name before its own is optional."""
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{DRIVER}/{name}") or {}
    return next((str(one) for one in value.values()), None)
