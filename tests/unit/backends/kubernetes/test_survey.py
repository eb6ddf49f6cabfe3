"""Facts of clusters of odd versions and rights, and the kubeconfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster_api import FORBIDDEN, cluster_api, group, version
from cluster_plans import a_cluster_plan, rendered
from seatrial.backends.kubernetes.objects import submit
from seatrial.backends.kubernetes.survey import read_version, survey
from seatrial.errors import UsageError
from tables import cases


def a_node(name: str, resources: dict[str, str]) -> dict[str, Any]:
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


def test_cluster_with_gpus_and_kueue(tmp_path: Path) -> None:
    answers = {
        "/version": version(34),
        "/api/v1/nodes": {"items": [a_node("a", {"nvidia.com/gpu": "4"}), a_node("b", {"cpu": "8"})]},
        "/apis/kueue.x-k8s.io": group("kueue.x-k8s.io", "v1beta1"),
    }
    with cluster_api(tmp_path, answers) as (cluster, _):
        facts = survey(cluster)
    assert (facts.version, facts.namespace, facts.kueue, facts.unread) == ((1, 34), "team", True, ())
    assert [(node.name, node.allocatable) for node in facts.nodes or ()] == [("a", 4), ("b", 0)]
    assert facts.indexed and facts.disruptions_free


@pytest.mark.parametrize(("resource", "known"), [("nvidia.com/gpu", False), ("nvidia.com/mig-1g.10gb", True)])
def test_gpus_that_a_device_class_stands_for_are_not_counted_on_nodes(
    tmp_path: Path, resource: str, known: bool
) -> None:
    classes = {"items": [{"spec": {"extendedResourceName": "nvidia.com/gpu"}}]}
    nodes = {"items": [a_node("a", {"cpu": "8"})]}
    answers = {
        "/version": version(35),
        "/api/v1/nodes": nodes,
        "/apis/resource.k8s.io/v1/deviceclasses": classes,
    }
    with cluster_api(tmp_path, answers) as (cluster, _):
        facts = survey(cluster, resource)
    assert (facts.nodes is not None) is known
    assert facts.unread == (() if known else ("a DeviceClass stands for nvidia.com/gpu, so free GPUs are unknown",))


def test_nodes_that_may_not_be_listed_are_unread(tmp_path: Path) -> None:
    with cluster_api(tmp_path, {"/version": version(20), "/api/v1/nodes": FORBIDDEN}) as (cluster, _):
        facts = survey(cluster)
    assert facts.nodes is None and "no permission to list nodes" in facts.unread[0]
    assert not facts.indexed and not facts.kueue


def test_kind_that_the_cluster_lacks_names_the_command_that_installs_it(tmp_path: Path) -> None:
    """An API server answers 404 for a group that it does not serve."""
    manifests = rendered(a_cluster_plan(tmp_path, kubernetes={"kind": "jobset"}))
    answers = {"/version": version(33), "POST /api/v1/namespaces/default/configmaps": {}}
    with cluster_api(tmp_path, answers) as (cluster, _), pytest.raises(UsageError, match="no jobsets") as raised:
        submit(cluster, manifests)
    assert "--kind job" in (raised.value.run or "") and "jobset/releases" in (raised.value.run or "")


@cases("answer", "read")
def test_version_is_read(answer: dict[str, str], read: tuple[int, int]) -> None:
    assert read_version(answer) == read
