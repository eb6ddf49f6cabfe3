"""Plans for a cluster that is not there: manifests on a laptop, and the kubeconfig that is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from cli_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    environ = {**os.environ, "KUBECONFIG": "/nowhere/config", "HOME": str(tmp_path)}
    made = Project(tmp_path / "project", "k8s", environ)
    made.write("train.py", "import torch.distributed\ntorch.distributed.init_process_group('nccl')\n")
    made.write("seatrial.toml", '[image]\nready = "registry.test/train:1"\n')
    return made


def test_manifests_of_a_kind_and_a_gpu_are_printed_without_a_cluster(project: Project) -> None:
    words = ("train.py", "--on", "k8s", "--as", "manifests", "--kind", "pytorchjob", "--target", "h100", "--nodes", "2")
    printed = project.cli("plan", *words).stdout
    *_, job = yaml.safe_load_all(printed)
    assert job["kind"] == "PyTorchJob" and len(printed) < 250_000
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        [container] = replica["template"]["spec"]["containers"]
        assert container["resources"] == {
            "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
            "limits": {"nvidia.com/gpu": "1"},
        }


def test_a_kubeconfig_that_does_not_exist_is_named(project: Project) -> None:
    assert "KUBECONFIG names /nowhere/config, which does not exist" in project.cli(
        "plan", "train.py", "--on", "k8s", "--target", "h100"
    ).stdout.replace("\n", " ")
    refused = project.cli("run", "--on", "k8s", "train.py", exit_code=5)
    assert "KUBECONFIG names /nowhere/config, which does not exist" in refused.stderr
