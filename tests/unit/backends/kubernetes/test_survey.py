"""What is learned of clusters of odd versions, with both ways to GPUs, and of those that tell little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_api import FORBIDDEN, cluster_api, group, version
from manifest_rules import CRDS, violations
from seatrial.backends.kubernetes.cleanup import clean_up
from seatrial.backends.kubernetes.devices import read_slices
from seatrial.backends.kubernetes.operators import retries_of
from seatrial.backends.kubernetes.problems import ApiError
from seatrial.backends.kubernetes.survey import survey

REVIEW = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
JOBSETS = {"/apis/jobset.x-k8s.io/v1alpha2": {"resources": [{"name": "jobsets"}, {"name": "jobsets/status"}]}}
DEPLOYMENTS = "/apis/apps/v1/deployments"


def a_node(name: str, **allocatable: str) -> dict[str, Any]:
    resources = {key.replace("__", "/").replace("_", "-"): value for key, value in allocatable.items()}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


def a_slice(node: str, devices: list[dict[str, Any]], generation: int = 1, **spec: Any) -> dict[str, Any]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices, **spec}}


def a_gpu(name: str, **more: Any) -> dict[str, Any]:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H200"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.95.5"},
    }
    return {"name": name, "attributes": attributes, **more}


def a_mig(name: str, profile: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": "mig"}, "profile": {"string": profile}}}


def classes(*names: str) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": name}} for name in names]}


def test_slices_are_counted_by_node_and_size() -> None:
    found = read_slices(
        [
            a_slice("a", [a_gpu("gpu-0"), a_gpu("gpu-1")]),
            a_slice("a", [a_gpu("gpu-2")]),
            a_slice("b", [a_mig("m-0", "1g.10gb"), a_mig("m-1", "1g.10gb"), a_mig("m-2", "3g.40gb")]),
            a_slice("c", [a_gpu("nic-0")], driver="dra.net"),
            {"spec": {"driver": "gpu.nvidia.com", "allNodes": True, "pool": {"name": "x"}, "devices": [a_gpu("g")]}},
        ]
    )
    assert {node: offer.counts for node, offer in found.items()} == {
        "a": {"gpu": 3},
        "b": {"1g.10gb": 2, "3g.40gb": 1},
    }
    assert found["a"].gpu == {"product": "NVIDIA H200", "capability": "9.0.0", "driver": "580.95.5"}


def test_an_older_generation_of_a_pool_is_void() -> None:
    old = a_slice("a", [a_gpu("gpu-0"), a_gpu("gpu-1"), a_gpu("gpu-2")], generation=3)
    new = a_slice("a", [a_gpu("gpu-0")], generation=4)
    for items in ([old, new], [new, old], [new, new]):
        assert read_slices(items)["a"].counts == {"gpu": 1}


def test_a_tainted_device_takes_no_pod() -> None:
    broken = a_gpu("gpu-1", taints=[{"key": "gpu.nvidia.com/xid", "effect": "NoExecute"}])
    watched = a_gpu("gpu-2", taints=[{"key": "gpu.nvidia.com/xid", "effect": "None"}])
    assert read_slices([a_slice("a", [a_gpu("gpu-0"), broken, watched])])["a"].counts == {"gpu": 2}
    assert read_slices([a_slice("a", [broken])])["a"].counts == {"gpu": 0}


def test_devices_as_v1beta1_has_them() -> None:
    gpu = a_gpu("gpu-0")
    basic = {"attributes": {f"gpu.nvidia.com/{key}": value for key, value in gpu["attributes"].items()}}
    offer = read_slices([a_slice("a", [{"name": "gpu-0", "basic": basic}])])["a"]
    assert offer.counts == {"gpu": 1} and offer.gpu["capability"] == "9.0.0"


@pytest.mark.parametrize("odd", [{}, {"spec": None}, a_slice("a", []), a_slice("a", [{"name": "x"}]), {"spec": {}}])
def test_slices_that_say_little(odd: dict[str, Any]) -> None:
    assert not any(offer.counts for offer in read_slices([odd]).values())


def test_a_cluster_with_both_ways_and_jobset(tmp_path: Path) -> None:
    answers = {
        "/version": version(34),
        **JOBSETS,
        f"{DEPLOYMENTS}?labelSelector=app.kubernetes.io/name=jobset": {"items": [{"metadata": {}}]},
        DEPLOYMENTS: {"items": []},
        REVIEW: {"status": {"allowed": True}},
        "/api/v1/nodes": {"items": [a_node("a", nvidia_com__gpu="0"), a_node("b", cpu="8")]},
        "/apis/resource.k8s.io": group("resource.k8s.io", "v1", "v1beta2"),
        "/apis/resource.k8s.io/v1/deviceclasses": classes("gpu.nvidia.com", "mig.nvidia.com"),
        "/apis/resource.k8s.io/v1/resourceslices": {"items": [a_slice("a", [a_gpu("gpu-0")])]},
    }
    with cluster_api(tmp_path, answers) as (cluster, _):
        facts = survey(cluster)
    assert (facts.version, facts.namespace, facts.operators) == ((1, 34), "team", ("jobset",))
    assert (facts.idle, facts.forbidden) == ((), ()), "its Deployment has another name where Helm made it"
    assert facts.claimable.api == "v1" and facts.claimable.classes == ("gpu.nvidia.com", "mig.nvidia.com")
    assert facts.claimable.offers is not None and facts.claimable.offers["a"].counts == {"gpu": 1}


def test_a_beta_of_the_api_and_nobody_who_acts_on_jobsets(tmp_path: Path) -> None:
    answers = {
        "/version": version(32),
        **JOBSETS,
        DEPLOYMENTS: {"items": []},
        REVIEW: {"status": {"allowed": False}},
        "/apis/resource.k8s.io": group("resource.k8s.io", "v1beta1"),
        "/apis/resource.k8s.io/v1beta1/deviceclasses": classes(),
    }
    with cluster_api(tmp_path, answers) as (cluster, asked):
        facts = survey(cluster)
    assert (facts.idle, facts.forbidden) == (("jobset",), ("jobset",))
    assert (facts.claimable.api, facts.claimable.classes, facts.claimable.offers) == ("v1beta1", (), {})
    assert "GET /apis/resource.k8s.io/v1beta1/resourceslices" not in asked, "without a class there is nothing to claim"


def test_no_rights_to_anything_but_discovery(tmp_path: Path) -> None:
    answers = {
        "/version": version(35),
        **JOBSETS,
        DEPLOYMENTS: FORBIDDEN,
        REVIEW: FORBIDDEN,
        "/api/v1/nodes": FORBIDDEN,
        "/apis/resource.k8s.io": group("resource.k8s.io", "v1"),
        "/apis/resource.k8s.io/v1/deviceclasses": FORBIDDEN,
        "/apis/resource.k8s.io/v1/resourceslices": FORBIDDEN,
    }
    with cluster_api(tmp_path, answers) as (cluster, _):
        facts = survey(cluster)
    assert (facts.operators, facts.idle, facts.forbidden, facts.nodes) == (("jobset",), (), (), None)
    assert (facts.claimable.api, facts.claimable.classes, facts.claimable.offers) == ("v1", None, None)


def test_an_old_cluster_has_nothing_to_claim(tmp_path: Path) -> None:
    with cluster_api(tmp_path, {"/version": version(20), "/api/v1/nodes": {"items": []}}) as (cluster, _):
        facts = survey(cluster)
    assert facts.claimable.api is None and facts.operators == () and facts.nodes == ()


NAMESPACE = "/namespaces/team/"
CORE = {f"/api/v1{NAMESPACE}{plural}": {"items": []} for plural in ("services", "configmaps", "secrets", "pods")}
KINDS = ("/apis/trainer.kubeflow.org/v1alpha1", "/apis/jobset.x-k8s.io/v1alpha2", "/apis/kubeflow.org/v1")


def _cleanup(folder: Path, operators: Any = FORBIDDEN, **rights: Any) -> tuple[list[str], list[str]]:
    listed = ("trainjobs", "jobsets", "pytorchjobs")
    answers = {
        "/version": version(34),
        **CORE,
        f"/apis/batch/v1{NAMESPACE}jobs": {"items": []},
        **{f"{api}{NAMESPACE}{plural}": operators for api, plural in zip(KINDS, listed, strict=True)},
        **rights,
    }
    with cluster_api(folder, answers) as (cluster, asked):
        return [one.name for one in clean_up(cluster, everything=True)], asked


def test_cleanup_with_an_older_role_where_those_kinds_are_not(tmp_path: Path) -> None:
    """Who may not list a kind is told 403 also where the cluster has none of it."""
    assert _cleanup(tmp_path)[0] == []


def test_cleanup_says_which_permission_is_missing_where_the_kind_is_there(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="jobsets"):
        _cleanup(tmp_path, **JOBSETS)


def test_cleanup_takes_the_templates_of_claims_in_the_version_that_is_served(tmp_path: Path) -> None:
    mine = {"metadata": {"name": "seatrial-r-gpus", "labels": {"seatrial.run": "r"}}}
    path = f"/apis/resource.k8s.io/v1beta2{NAMESPACE}resourceclaimtemplates"
    discovery = {"/apis/resource.k8s.io": group("resource.k8s.io", "v1beta2", "v1beta1")}
    names, asked = _cleanup(tmp_path, {"items": []}, **discovery, **{path: {"items": [mine]}})
    assert names == ["resourceclaimtemplate/seatrial-r-gpus"] and f"DELETE {path}/seatrial-r-gpus" in asked
    assert _cleanup(tmp_path, {"items": []}, **discovery, **{path: FORBIDDEN})[0] == []


def a_runtime(job: dict[str, Any], **spec: Any) -> dict[str, Any]:
    initializer = {"name": "dataset-initializer", "template": {"spec": {"backoffLimit": 1}}}
    jobs = [initializer, {"name": "node", "template": {"spec": job}}]
    return {"spec": {"template": {"spec": {"replicatedJobs": jobs, **spec}}}}


def on_exit(action: str, operator: str, *codes: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(codes)}}


@pytest.mark.parametrize(
    ("runtime", "retries"),
    [
        (a_runtime({"template": {}}), 6),
        (a_runtime({"backoffLimit": 0}), 0),
        (a_runtime({"backoffLimit": 0}, failurePolicy={"maxRestarts": 3}), 3),
        (a_runtime({"backoffLimit": 2}, failurePolicy={"maxRestarts": 1}), 5),
        ({"spec": {"template": {"spec": {"replicatedJobs": [{"name": "launcher"}]}}}}, None),
        ({}, None),
        (a_runtime({"podFailurePolicy": {"rules": [on_exit("FailJob", "NotIn", 137)]}}), 0),
        (a_runtime({"podFailurePolicy": {"rules": [on_exit("FailJob", "In", 1, 3)]}}), 0),
        (a_runtime({"podFailurePolicy": {"rules": [on_exit("FailJob", "In", 3)]}}), 6),
        (a_runtime({"podFailurePolicy": {"rules": [on_exit("Count", "In", 1), on_exit("FailJob", "NotIn", 9)]}}), 6),
        (a_runtime({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": []}]}}), 6),
    ],
)
def test_how_often_a_runtime_starts_again_what_failed(runtime: dict[str, Any], retries: int | None) -> None:
    assert retries_of(runtime) == retries


def test_the_runtime_that_is_named_is_read(tmp_path: Path) -> None:
    trainer = "/apis/trainer.kubeflow.org/v1alpha1"
    answers = {
        "/version": version(33),
        trainer: {"resources": [{"name": "trainjobs"}]},
        f"{trainer}/clustertrainingruntimes/once": a_runtime({"backoffLimit": 0}),
        "/api/v1/nodes": {"items": []},
    }
    with cluster_api(tmp_path, answers) as (cluster, _):
        assert survey(cluster, runtime="once").retries == 0
        assert survey(cluster).retries is None


def test_the_runtime_of_the_documentation_tries_nothing_again_and_would_be_taken() -> None:
    runtime = yaml.safe_load((Path(__file__).parents[4] / "docs" / "kubernetes-runtime.yaml").read_text())
    assert retries_of(runtime) == 0
    if not CRDS.is_dir():
        pytest.skip("the CRDs are not beside the repository")
    assert violations(runtime) == []
