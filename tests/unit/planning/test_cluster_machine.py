"""What an image for a cluster is built for, from its nodes' labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.images.plan import plan_image
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.script import ScriptFacts
from seatrial.planning.cluster.machine import cluster_machine, gpu_memory_warnings

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/cuda.driver.major": "535",
    "nvidia.com/cuda.driver.minor": "129",
    "nvidia.com/cuda.driver.rev": "03",
}
H200 = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
    "pool": "new",
}


def cluster(*labels: dict[str, str]) -> ClusterFacts:
    return ClusterFacts(nodes=tuple(Node(str(at), 8, 8, ready=True, labels=each) for at, each in enumerate(labels)))


def test_the_kinds_of_gpus_and_the_oldest_driver() -> None:
    machine = cluster_machine(cluster(A100, H200, A100), {})
    assert machine.driver == "535.129.03"
    assert machine.capabilities == ("8.0", "9.0")  # the H200's from the table
    assert len(machine.gpus) == 2


def test_only_nodes_that_the_pods_may_land_on_count() -> None:
    machine = cluster_machine(cluster(A100, H200), {"pool": "new"})
    assert (machine.driver, machine.capabilities) == ("580.95.05", ("9.0",))


@pytest.mark.parametrize("facts", [ClusterFacts(), cluster({}), ClusterFacts(nodes=(Node("cpu", 0, 0, ready=True),))])
def test_nodes_that_say_nothing_set_no_rule(facts: ClusterFacts) -> None:
    machine = cluster_machine(facts, {})
    assert (machine.driver, machine.gpus) == (None, ())


def test_the_build_of_torch_follows_the_clusters_driver(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="script", value="t.py"), image=ImageOptions())

    def build(*labels: dict[str, str]) -> str:
        machine = cluster_machine(cluster(*labels), {})
        plan, _ = plan_image(job, script=ScriptFacts(imports=("torch",)), cpu_only=False, machine=machine)
        return plan.stack["build"]

    assert (build(A100), build(H200), build(A100, H200)) == ("cu126", "cu130", "cu126")


def test_a_limit_that_no_gpu_of_the_cluster_has_is_told(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="script", value="t.py"), gpu_memory_bytes=100 * 2**30)
    small, large = ({"nvidia.com/gpu.memory": mib} for mib in ("81920", "143771"))
    assert gpu_memory_warnings(job, cluster(small, small)) == (
        "--gpu-memory 100 GiB: the largest GPU of this cluster has 80 GiB",
    )
    assert gpu_memory_warnings(job, cluster(small, large)) == ()
    assert gpu_memory_warnings(job, cluster(small, {})) == gpu_memory_warnings(job, cluster()) == ()
