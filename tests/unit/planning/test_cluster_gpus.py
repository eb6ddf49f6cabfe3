"""How pods get GPUs: the device plugin's resource, a MIG slice of a size, or a claim; on clusters that have one, the
other, both, or tell nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_plans import CLAIMS, DDP, KUBEFLOW, MODERN, a_cluster_plan
from manifest_rules import VERSIONS, violations
from seatrial.backends.kubernetes.devices import Claimable, Offer
from seatrial.backends.kubernetes.explain import Surroundings, explain
from seatrial.backends.kubernetes.manifests.render import render
from seatrial.backends.kubernetes.pods import read_pod
from seatrial.backends.kubernetes.submit import path_of
from seatrial.backends.kubernetes.survey import ClusterFacts, Node, read_node
from seatrial.errors import CapacityError, GpuRequestError, UsageError
from seatrial.job.plan import Plan
from seatrial.planning.cluster.machine import cluster_machine
from seatrial.planning.cluster.survey import lacks

GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"

#: The device plugin with MIG strategy mixed: whole GPUs, and slices of two sizes.
MIXED = replace(
    MODERN,
    nodes=(
        Node("whole", 0, 0, ready=True, offers={"nvidia.com/gpu": 8}),
        Node("cut", 7, 7, ready=True, offers={"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2}),
    ),
)
BOTH = replace(CLAIMS, nodes=(Node("gpu-1", 4, 4, ready=True, offers={"nvidia.com/gpu": 4}),))


def _container(plan: Plan) -> dict[str, Any]:
    workload = render(plan, {"agent.pyz": b"x"})[-1]
    spec = workload["spec"]["template"]["spec"]
    container: dict[str, Any] = spec["containers"][0]
    return {**container, "pod": spec}


def _told(plan: Plan) -> tuple[str, str]:
    [choice] = [choice for choice in plan.choices if choice.what == "gpus"]
    return choice.value, choice.reason


# ------------------------------------------------------------------- claims


def test_gpus_are_claimed_where_no_node_has_the_plugins_resource(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, CLAIMS, gpus="2")
    assert plan.cluster is not None and plan.cluster.claim is not None
    assert _told(plan) == (
        "2 gpu.nvidia.com per pod",
        "--gpus 2; no node has nvidia.com/gpu, but the cluster has the DeviceClass gpu.nvidia.com",
    )
    assert (plan.injection, plan.agent.gpu_count, plan.gpus_asked) == ("resource-claim", 2, 2)
    container = _container(plan)
    assert container["resources"]["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in container["resources"]["requests"] and "limits" not in container["resources"]
    [claim] = container["pod"]["resourceClaims"]
    assert claim == {"name": "gpus", "resourceClaimTemplateName": f"{plan.cluster.name}-gpus"}
    assert any(one["key"] == "nvidia.com/gpu" for one in container["pod"]["tolerations"])


@pytest.mark.parametrize(
    ("facts", "flags", "claims"),
    [
        (CLAIMS, {"gpus": "none"}, False),
        (CLAIMS, {"gpus": "auto"}, True),
        (CLAIMS, {"gpus": "1", "kubernetes": {"gpu_claims": False}}, False),
        (CLAIMS, {"gpus": "1", "kubernetes": {"gpu_resource": "amd.com/gpu"}}, False),
        (BOTH, {"gpus": "1"}, False),
        (BOTH, {"gpus": "1", "kubernetes": {"gpu_claims": True}}, True),
        (BOTH, {"gpus": "none", "kubernetes": {"gpu_claims": True}}, False),
        (replace(CLAIMS, nodes=None), {"gpus": "1"}, False),
        (replace(CLAIMS, claimable=Claimable("v1", ("gpu.intel.com",), {})), {"gpus": "1"}, False),
        (replace(CLAIMS, claimable=Claimable("v1")), {"gpus": "1"}, False),
    ],
)
def test_when_they_are_claimed(tmp_path: Path, facts: ClusterFacts, flags: dict[str, Any], claims: bool) -> None:
    plan = a_cluster_plan(tmp_path, facts, **flags)
    assert plan.cluster is not None and (plan.cluster.claim is not None) is claims
    kinds = [manifest["kind"] for manifest in render(plan, {"agent.pyz": b"x"})]
    assert ("ResourceClaimTemplate" in kinds) is claims


@pytest.mark.parametrize("api", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("gpus", ["2", "mig-1g.18gb"])
def test_a_claim_is_written_in_the_version_that_the_cluster_has(tmp_path: Path, api: str, gpus: str) -> None:
    facts = replace(CLAIMS, claimable=replace(CLAIMS.claimable, api=api))
    made = render(a_cluster_plan(tmp_path, facts, gpus=gpus), {"agent.pyz": b"x"})
    [template] = [manifest for manifest in made if manifest["kind"] == "ResourceClaimTemplate"]
    since = {"v1": "1.34", "v1beta2": "1.33", "v1beta1": "1.32"}[api]
    for version in VERSIONS[VERSIONS.index(since) : VERSIONS.index(since) + 2]:
        assert violations(template, version) == []
    [request] = template["spec"]["spec"]["devices"]["requests"]
    wanted = request if api == "v1beta1" else request["exactly"]
    assert wanted["deviceClassName"] == (MIG_CLASS if "mig" in gpus else GPU_CLASS)
    assert wanted["count"] == (1 if "mig" in gpus else 2)
    assert ("'].profile == '1g.18gb'" in str(wanted.get("selectors"))) is ("mig" in gpus)
    assert path_of(template, named=False) == f"/apis/resource.k8s.io/{api}/namespaces/default/resourceclaimtemplates"


@pytest.mark.parametrize(
    ("claimable", "words", "run"),
    [
        (Claimable(), "v1.34.1 has no resource.k8s.io", "kubectl api-versions"),
        (Claimable("v1", (), {}), "no DeviceClass gpu.nvidia.com", "kubectl get deviceclasses"),
        (Claimable("v1", ("neuron.aws.com",), {}), "no DeviceClass gpu.nvidia.com", "gpu_claims"),
    ],
)
def test_claims_that_cannot_be(tmp_path: Path, claimable: Claimable, words: str, run: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        a_cluster_plan(tmp_path, replace(CLAIMS, claimable=claimable), gpus="1", kubernetes={"gpu_claims": True})
    assert run in (raised.value.run or "")


def test_no_rights_to_list_device_classes(tmp_path: Path) -> None:
    facts = replace(CLAIMS, claimable=Claimable("v1"), nodes=None)
    plan = a_cluster_plan(tmp_path, facts, gpus="1", kubernetes={"gpu_claims": True})
    assert plan.cluster is not None and plan.cluster.claim is not None
    assert any("no permission to list DeviceClasses" in warning for warning in plan.warnings)
    assert not any("pods wait until" in warning for warning in plan.warnings), "what is not known is not said"


def test_what_nodes_offer_to_claims_is_the_capacity(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, CLAIMS, gpus="8")
    assert any("No node has 8 gpu.nvidia.com: the largest, gpu-1, has 4" in warning for warning in plan.warnings)
    with pytest.raises(CapacityError, match="the largest, gpu-1, has 4"):
        a_cluster_plan(tmp_path, CLAIMS, gpus="8", kubernetes={"require_capacity": True})
    plan = a_cluster_plan(tmp_path, CLAIMS, gpus="mig-3g.71gb")
    assert any("mig.nvidia.com (3g.71gb) now; its nodes offer 1g.18gb, whole GPUs" in said for said in plan.warnings)
    job = SimpleNamespace(gpus=plan.job.gpus.parse("4"), kubernetes=plan.job.kubernetes)
    assert not lacks(job, CLAIMS)  # type: ignore[arg-type]
    job.gpus = job.gpus.parse("5")
    assert lacks(job, CLAIMS)  # type: ignore[arg-type]


def test_auto_without_a_device_to_claim_is_the_cpu_and_says_so(tmp_path: Path) -> None:
    empty = replace(CLAIMS, claimable=replace(CLAIMS.claimable, offers={"gpu-1": Offer({"1g.18gb": 7})}))
    plan = a_cluster_plan(tmp_path, empty, gpus="auto")
    assert plan.agent.gpu_mode == "auto-cpu"
    assert _told(plan) == ("none", "no node has gpu.nvidia.com; they offer 1g.18gb")


def test_an_image_is_built_for_the_gpus_that_are_claimed() -> None:
    node = Node("gpu-1", 4, 4, ready=True, gpu={"product": "NVIDIA H200", "capability": "9.0.0", "driver": "580.95.5"})
    machine = cluster_machine(ClusterFacts(nodes=(node,)), {})
    assert (machine.driver, machine.capabilities) == ("580.95.5", ("9.0",))


def test_a_trainjob_cannot_claim(tmp_path: Path) -> None:
    trainer = replace(CLAIMS, operators=("trainjob",))
    plan = a_cluster_plan(tmp_path, trainer, gpus="1")
    assert plan.cluster is not None and plan.cluster.kind == "job"
    assert any("a TrainJob cannot claim GPUs" in choice.reason for choice in plan.choices)
    with pytest.raises(UsageError, match="cannot claim GPUs"):
        render(a_cluster_plan(tmp_path, trainer, gpus="1", kubernetes={"kind": "trainjob"}), {"agent.pyz": b"x"})


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "jobset"])
def test_every_other_kind_claims_and_would_be_taken(tmp_path: Path, kind: str) -> None:
    facts = replace(KUBEFLOW, claimable=CLAIMS.claimable)
    options = {"kind": kind, "gpu_claims": True, "models": "pvc:m"}
    plan = a_cluster_plan(tmp_path, facts, gpus="1", nodes="2", script=DDP, kubernetes=options)
    workload = render(plan, {"agent.pyz": b"x"})[-1]
    assert "resourceClaims" in str(workload)
    try:
        assert violations(workload) == []
    except LookupError:
        pytest.skip("the CRDs are not beside the repository")


# ------------------------------------------------------------- slices by size


def test_a_slice_is_a_resource_of_its_own(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, MIXED, gpus="mig-1g.10gb")
    assert _container(plan)["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
    assert _told(plan) == ("1 nvidia.com/mig-1g.10gb per pod", "--gpus mig-1g.10gb")
    assert plan.warnings == a_cluster_plan(tmp_path, MIXED, gpus="none").warnings
    assert plan.job.gpus.noun == "1g.10gb MIG slice" and plan.injection == "device-plugin"


def test_a_plus_is_a_dot_in_the_name_of_a_resource(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, MIXED, gpus="mig-1g.10gb+me")
    assert _container(plan)["resources"]["limits"] == {"nvidia.com/mig-1g.10gb.me": "1"}
    assert violations(render(plan, {"agent.pyz": b"x"})[-1]) == []


def test_a_size_that_no_node_has_names_those_that_it_has(tmp_path: Path) -> None:
    facts = replace(MIXED, nodes=tuple(replace(node, capacity=0, allocatable=0) for node in MIXED.nodes or ()))
    [warning] = [one for one in a_cluster_plan(tmp_path, facts, gpus="mig-7g.80gb").warnings if "No node" in one]
    assert "nvidia.com/mig-7g.80gb now; its nodes offer nvidia.com/gpu, nvidia.com/mig-1g.10gb" in warning


def test_slices_that_the_plugin_calls_gpus_are_pointed_at(tmp_path: Path) -> None:
    single = Node("s", 0, 0, ready=True, product="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", offers={"nvidia.com/gpu": 7})
    facts = replace(MODERN, nodes=(single,))
    [warning] = [one for one in a_cluster_plan(tmp_path, facts, gpus="mig-1g.10gb").warnings if "No node" in one]
    assert '--gpus 1 with node_selector {"nvidia.com/gpu.product" = "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}' in warning


def test_several_slices_are_several_pods(tmp_path: Path) -> None:
    with pytest.raises(GpuRequestError, match="one MIG slice and no other GPU") as raised:
        a_cluster_plan(tmp_path, MIXED, gpus="2", kubernetes={"gpu_resource": "nvidia.com/mig-1g.10gb"})
    assert "--nodes N" in (raised.value.run or "")
    plan = a_cluster_plan(tmp_path, MIXED, gpus="mig-1g.10gb", nodes="3", script=DDP)
    assert plan.gpus_asked == 3


def test_a_node_is_read_with_all_that_it_offers() -> None:
    resources = {"cpu": "8", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7", "rdma/ib": "1"}
    item = {"metadata": {"name": "cut"}, "status": {"capacity": resources, "allocatable": resources}}
    node = read_node(item, "nvidia.com/mig-1g.10gb")
    assert (node.capacity, node.allocatable, node.offers) == (7, 7, {"nvidia.com/mig-1g.10gb": 7})


# ------------------------------------------------------------------ explained


def _pending(**spec: Any) -> dict[str, Any]:
    meta = {"name": "p", "uid": "u", "creationTimestamp": "2026-11-22T10:00:00Z"}
    return {"metadata": meta, "spec": {"containers": [{"name": "train", **spec}]}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    ("message", "offers", "id", "told"),
    [
        (
            "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) had untolerated taint {a: }. still not "
            "schedulable, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
            {"gpu-1": Offer({"gpu": 4}), "gpu-2": Offer({"gpu": 4, "1g.18gb": 7})},
            "k8s-claims",
            "7 1g.18gb, 8 whole GPUs on 2 nodes",
        ),
        ("0/1 nodes are available: 1 cannot allocate all claims.", {}, "k8s-claims", "no node offers any"),
        ("0/1 nodes are available: 1 cannot allocate all claims.", None, "k8s-claims", "no permission to list"),
        (
            "0/1 nodes are available: request gpus: device class gpu.nvidia.com does not exist.",
            None,
            "k8s-device-class",
            "DeviceClass gpu.nvidia.com",
        ),
    ],
)
def test_a_claim_that_waits_is_explained(message: str, offers: dict[str, Offer] | None, id: str, told: str) -> None:
    item = _pending()
    finding = explain(read_pod(item), "FailedScheduling", message, Surroundings(item, "nvidia.com/gpu", offers=offers))
    assert finding is not None and finding.id == id and told in finding.message


def test_a_slice_that_no_node_has_is_explained_by_what_they_have() -> None:
    item = _pending(resources={"limits": {"nvidia.com/mig-3g.71gb": "1"}})
    around = Surroundings(item, "nvidia.com/mig-3g.71gb", (Node("n", 0, 0, True, offers={"nvidia.com/gpu": 8}),), ())
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/mig-3g.71gb."
    finding = explain(read_pod(item), "FailedScheduling", message, around)
    assert finding is not None and finding.id == "k8s-no-gpu-resource"
    assert "nvidia.com/gpu instead" in (finding.cause or "")


# ---------------------------------------------------------------- /dev/shm


@pytest.mark.parametrize(
    ("flags", "size", "requested", "counts"),
    [
        ({"gpus": "2"}, 4 * 2**30, "2Gi", "what is used of it counts as the pod's memory"),
        ({"gpus": "2", "shm_size": "8GiB"}, 8 * 2**30, "10Gi", "requested on top of the pod's memory"),
        ({"gpus": "none", "shm_size": "512MiB"}, 2**29, "1.5Gi", "requested on top"),
        ({"gpus": "2", "memory": "6GiB"}, 3 * 2**30, str(6 * 2**30), "half of the memory limit"),
        ({"gpus": "2", "memory": "6GiB", "shm_size": "1GiB"}, 2**30, str(6 * 2**30), "part of the pod's 6 GiB"),
    ],
)
def test_shared_memory_is_sized_counted_and_told(
    tmp_path: Path, flags: dict[str, Any], size: int, requested: str, counts: str
) -> None:
    plan = a_cluster_plan(tmp_path, **flags)
    container = _container(plan)
    [shm] = [volume["emptyDir"] for volume in container["pod"]["volumes"] if volume["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": str(size)}
    assert container["resources"]["requests"]["memory"] == requested
    assert counts in next(choice.reason for choice in plan.choices if choice.what == "/dev/shm")


def test_more_shared_memory_than_memory_is_warned_of(tmp_path: Path) -> None:
    for size, warned in (("9GB", True), ("8GB", False)):
        plan = a_cluster_plan(tmp_path, gpus="1", memory="8GB", shm_size=size)
        assert any("a script that fills it will be killed" in warning for warning in plan.warnings) is warned
