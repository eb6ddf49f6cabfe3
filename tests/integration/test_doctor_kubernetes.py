"""doctor on a real cluster: a node without the GPU resource, then one with an unhealthy GPU.

Named so that it runs before the tests that fake GPUs on the same node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from machines import healthy
from pace import until
from seatrial.backends.kubernetes.client import Cluster
from seatrial.doctor.checks.kubernetes import trying
from seatrial.doctor.examine import CHAIN, Result, examine
from seatrial.doctor.machine import Machine
from seatrial.job.cluster import Volume
from seatrial.system.host import Host

pytestmark = pytest.mark.kubernetes

NODE_STATUS = "/api/v1/nodes/test-node/status"
PODS = "/api/v1/namespaces/default/pods"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "asks-for-too-many"},
    "spec": {
        "containers": [
            {"name": "x", "image": "python:3.11-slim-bookworm", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        ]
    },
}


def report_gpus(cluster: Cluster, capacity: str | None, allocatable: str | None) -> None:
    """Patch as a device plugin does: a capacity above the allocatable count means unhealthy devices."""
    status = {"capacity": {"nvidia.com/gpu": capacity}, "allocatable": {"nvidia.com/gpu": allocatable}}
    cluster.patch(NODE_STATUS, {"status": status})


def test_a_real_node_without_the_resource_then_with_an_unhealthy_gpu(
    kubeconfig: Path, cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("kr8s")
    host = healthy(tmp_path / "root")

    def look() -> dict[str, Result]:
        layers = [layer for layer in CHAIN if layer.name == "kubernetes"]
        results = examine(Machine(Host({"KUBECONFIG": str(kubeconfig)}), run=host._run), layers)
        return {result.check.id: result for result in results}

    seen = look()
    assert seen["kubernetes.reachable"].verdict.status == "ok"
    assert [finding.id for finding in seen["kubernetes.nodes"].verdict.findings] == ["k8s-no-gpu-resource"]
    report_gpus(cluster, "2", "1")
    cluster.create(PODS, POD)
    try:
        seen = look()
        assert [finding.id for finding in seen["kubernetes.healthy"].verdict.findings] == ["k8s-gpu-unhealthy"]
        assert [finding.id for finding in seen["kubernetes.free"].verdict.findings] == ["k8s-insufficient-gpus"]
    finally:
        cluster.delete(f"{PODS}/asks-for-too-many", grace_s=0)
        report_gpus(cluster, None, None)
        until(lambda: cluster.get(NODE_STATUS)["status"]["allocatable"].get("nvidia.com/gpu") in (None, "0"))


def test_a_short_pod_proves_pull_mount_write_log_and_exit_code(kubeconfig: Path, cluster: Cluster) -> None:
    machine = Machine(Host({"KUBECONFIG": str(kubeconfig)}))
    [ran] = examine(machine, [trying("python:3.11-slim-bookworm", Volume(kind="emptydir"))])
    assert ran.verdict.status == "ok", ran.verdict
    assert "on test-node: pulled, mounted, written, logged and ended in" in ran.verdict.line
    [refused] = examine(machine, [trying("registry.invalid/x:1", Volume(kind="emptydir"))])
    assert [finding.id for finding in refused.verdict.findings] == ["k8s-pod-failed"]
    assert "registry.invalid/x:1" in refused.verdict.findings[0].evidence[1]
    left = cluster.get(PODS, labelSelector="app.kubernetes.io/managed-by=seatrial")["items"]
    assert all("deletionTimestamp" in one["metadata"] for one in left)
