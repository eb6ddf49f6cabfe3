"""doctor on clusters of several versions: with the device plugin, with Dynamic Resource Allocation, both and none."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from cluster_api import api_server
from machines import healthy
from seatrial.doctor.checks.kubernetes import KUBERNETES, RIGHTS, trying
from seatrial.doctor.examine import Result, examine
from seatrial.doctor.machine import Machine
from seatrial.job.cluster import Volume
from seatrial.system.host import Host

pytest.importorskip("kr8s")

#: Version → group and version of Dynamic Resource Allocation that is served by default.
#: Source: kubernetes.io/docs/reference/access-authn-authz; the API is stable and on by default from 1.34.
VERSIONS = {"1.29": None, "1.32": "v1beta1", "1.33": "v1beta2", "1.35": "v1"}
RULES = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]


def listing(*items: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(items)}


def a_slice(*devices: dict[str, Any], pool: str = "gpu-1", generation: int = 1, **more: Any) -> dict[str, Any]:
    known = {"driver": "gpu.nvidia.com", "pool": {"name": pool, "generation": generation}, "nodeName": "gpu-1"}
    return {"spec": {**known, "devices": list(devices), **more}}


def a_cluster(version: str, plugin: int = 0, claims: int = 0, *, driver: bool = False, **more: Any) -> dict[str, Any]:
    dra = VERSIONS[version]
    names = ["apps", *(["resource.k8s.io"] if dra else []), *more.pop("groups", ())]
    versions = {"resource.k8s.io": dra, "apps": "v1"}
    groups = [
        {"name": name, "versions": [], "preferredVersion": {"groupVersion": f"{name}/{versions.get(name, 'v1')}"}}
        for name in names
    ]
    counts = {"nvidia.com/gpu": str(plugin)} if plugin else {}
    node = {"metadata": {"name": "gpu-1"}, "status": {"capacity": counts, "allocatable": counts}}
    slices = a_slice(*({"name": f"gpu-{n}"} for n in range(claims)))
    of_dra = {
        f"/apis/resource.k8s.io/{dra}/resourceslices": listing(*([slices] if claims else [])),
        f"/apis/resource.k8s.io/{dra}/deviceclasses": listing(
            *([{"metadata": {"name": "gpu.nvidia.com"}}] if claims or driver else [])
        ),
    }
    return {
        "/version": {"major": "1", "minor": version[2:], "gitVersion": f"v{version}.0"},
        "/apis": {"groups": groups},
        "/api/v1/nodes": listing(node),
        "/api/v1/pods": listing(),
        "/api/v1/events": listing(),
        "/api/v1/namespaces/team": {"metadata": {"name": "team", "labels": more.pop("labels", {})}},
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": {
            "status": {"incomplete": False, "resourceRules": more.pop("rules", RULES)}
        },
        **(of_dra if dra else {}),
        **more,
    }


def examined(folder: Path, answers: dict[str, Any]) -> dict[str, Result]:
    folder = Path(mkdtemp(dir=folder))
    host = healthy(folder / "root")
    with api_server(folder, answers) as (kubeconfig, _):
        results = examine(Machine(Host({"KUBECONFIG": str(kubeconfig)}), run=host._run), [KUBERNETES])
    return {result.check.id.removeprefix("kubernetes."): result for result in results}


@pytest.mark.parametrize(
    ("offer", "version"),
    [
        *((offer, "1.35") for offer in ("plugin", "claims", "both", "none", "driver")),
        *(("both", version) for version in ("1.32", "1.33")),
        *((offer, "1.29") for offer in ("plugin", "none")),
    ],
)
def test_gpus_are_found_however_they_are_offered(tmp_path: Path, version: str, offer: str) -> None:
    plugin, claims = 8 * (offer in ("plugin", "both")), 4 * (offer in ("claims", "both"))
    verdict = examined(tmp_path, a_cluster(version, plugin, claims, driver=offer == "driver"))["nodes"].verdict
    if offer in ("none", "driver"):
        [finding] = verdict.findings
        assert finding.id == "k8s-no-gpu-resource" and verdict.status == "warning"
        assert ("device-plugin" in str(finding.fix)) == (offer == "none"), finding.fix
    else:
        assert verdict.status == "ok"
        assert ("8 GPUs on gpu-1" in verdict.line) == bool(plugin)
        assert ("4 GPUs to claim ([kubernetes] gpu_claims = true) on gpu-1" in verdict.line) == bool(claims)


def a_device(kind: str, **more: Any) -> dict[str, Any]:
    return {"name": kind, "attributes": {"type": {"string": kind}}, **more}


TAINT = {"key": "gpu.nvidia.com/xid", "effect": "NoExecute"}
WHOLE = a_device("gpu")
CLASS = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


@pytest.mark.parametrize(
    ("slices", "classes", "line"),
    [
        ([a_slice(WHOLE), a_slice(WHOLE)], [], "2 GPUs to claim ([kubernetes] gpu_claims = true) on gpu-1"),
        ([a_slice(WHOLE, WHOLE), a_slice(WHOLE, generation=2)], [], "1 GPUs to claim"),
        ([a_slice(WHOLE), a_slice(sharedCounters=[{"name": "gpu-0"}])], [], "1 GPUs to claim"),
        ([a_slice(WHOLE, *[a_device("mig")] * 7)], [], "7 MIG slices to claim"),
        ([a_slice(WHOLE, a_device("gpu", taints=[TAINT]))], [], "1 GPUs to claim"),
        ([a_slice(WHOLE, nodeName=None, allNodes=True)], [], "on several nodes"),
        ([a_slice({**WHOLE, "nodeName": "gpu-7"}, nodeName=None)], [], "on gpu-7"),
        ([a_slice({"name": "gpu-0", "basic": {"attributes": WHOLE["attributes"]}})], [], "1 GPUs to claim"),
        ([a_slice(WHOLE)], [CLASS], "1 GPUs by claims for nvidia.com/gpu on gpu-1"),
        ([a_slice(WHOLE), {"driverName": "gpu.nvidia.com", "nodeName": "gpu-1"}], [], "1 GPUs to claim"),
    ],
)
def test_devices_are_counted_as_claims_get_them(
    tmp_path: Path, slices: list[dict[str, Any]], classes: list[dict[str, Any]], line: str
) -> None:
    """Several slices of a pool, replaced ones, partitions, taints, all forms of a node, and v1beta1 and v1alpha2."""
    paths = {"resourceslices": slices, "deviceclasses": classes}
    answers = {f"/apis/resource.k8s.io/v1/{name}": listing(*items) for name, items in paths.items()}
    assert line in examined(tmp_path, a_cluster("1.35", **answers))["nodes"].verdict.line


@pytest.mark.parametrize("version", VERSIONS)
def test_a_healthy_cluster_has_no_finding(tmp_path: Path, version: str) -> None:
    deployments = listing({"metadata": {"name": "jobset-controller-manager"}, "status": {"availableReplicas": 1}})
    more = {"groups": ["jobset.x-k8s.io", "kubeflow.org"], "/apis/apps/v1/deployments": deployments}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    seen = examined(tmp_path, a_cluster(version, plugin=8, labels=labels, **more))
    assert {name: result.verdict.line for name, result in seen.items() if result.verdict.status != "ok"} == {}
    assert "Pod Security restricted, which admits no hostpath volume" in seen["namespace"].verdict.line
    assert seen["operators"].verdict.line == "jobset-controller-manager"


def test_a_namespaced_user_gets_what_can_be_read_and_the_rest_by_name(tmp_path: Path) -> None:
    role = [{"verbs": list(verbs), "apiGroups": [group], "resources": [name]} for name, group, verbs in RIGHTS]
    hidden = dict.fromkeys(("/api/v1/nodes", "/api/v1/pods", "/api/v1/events", "/apis/apps/v1/deployments"), 403)
    seen = examined(tmp_path, a_cluster("1.35", **{"rules": role, **hidden}))
    assert seen["reachable"].verdict.status == "ok", seen["reachable"].verdict
    assert seen["rights"].verdict.status == "ok"
    assert seen["nodes"].verdict.line == "no permission to list nodes, so their GPUs are unknown"
    assert {seen[name].verdict.status for name in ("nodes", "free", "images")} == {"unknown"}
    seen = examined(tmp_path, a_cluster("1.35", rules=role[1:]))
    [finding] = seen["rights"].verdict.findings
    assert "create configmaps, patch configmaps, delete configmaps" in finding.evidence[0]


def test_rights_that_the_cluster_does_not_list_are_not_judged(tmp_path: Path) -> None:
    review = {"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": {"status": {"incomplete": True}}}
    assert examined(tmp_path, a_cluster("1.35", **review))["rights"].verdict.status == "unknown"


@pytest.mark.parametrize(
    ("named", "on", "status"),
    [(True, "auto", "warning"), (True, "k8s", "broken"), (False, "k8s", "broken"), (False, "auto", "skipped")],
)
def test_a_kubeconfig_that_is_not_there_is_named_if_it_was_requested(
    tmp_path: Path, named: bool, on: str, status: str
) -> None:
    variables = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    if named:  # the default file does not replace it
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").write_text("apiVersion: v1\n")
        variables["KUBECONFIG"] = str(tmp_path / "none")
    (reachable, *others) = examine(Machine(Host(variables), on=on), [KUBERNETES])
    assert reachable.verdict.status == status
    if named:
        [finding] = reachable.verdict.findings
        assert f"KUBECONFIG names {tmp_path}/none, which does not exist" in finding.evidence
        assert finding.fix is not None and finding.fix.startswith("export KUBECONFIG=")
    assert all(each.verdict.status in ("skipped", "blocked") for each in others)


def test_a_short_pod_that_does_not_end_as_requested_is_reported_and_removed(tmp_path: Path) -> None:
    status = {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}, "name": "train"}
    pod = {
        "metadata": {"name": "x", "uid": "1", "creationTimestamp": "2026-11-27T08:00:00Z"},
        "status": {"phase": "Failed", "containerStatuses": [status]},
    }
    pods = "/api/v1/namespaces/team/pods"
    answers = a_cluster("1.35", **{pods: pod, "/api/v1/namespaces/team/configmaps": {}})
    answers["/api/v1/namespaces/team/events"] = listing()
    with api_server(tmp_path, answers) as (kubeconfig, requested):
        machine = Machine(Host({"KUBECONFIG": str(kubeconfig)}), run=healthy(tmp_path / "root")._run)
        [result] = examine(machine, [trying("busybox:1", Volume(kind="emptydir"))])
    [finding] = result.verdict.findings
    assert finding.id == "k8s-pod-failed" and result.verdict.status == "broken"
    assert [line.split(" ")[0] for line in requested].count("DELETE") == 2
