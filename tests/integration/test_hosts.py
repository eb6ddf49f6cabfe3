"""Several machines without Kubernetes: two containers on a network of their own, one command each, one training."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli_project import Project
from seatrial.backends.containers.docker_and_podman import Docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("kubernetes")]  # the same image, built once

HOSTS = "node0,node1"


@pytest.fixture
def network(docker_backend: Docker, tmp_path: Path) -> Iterator[str]:
    name = f"seatrial-{tmp_path.parent.name}-hosts"
    made = subprocess.run([*docker_backend.call, "network", "create", name], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no network of containers here: {made.stderr.strip()[-200:]}")
    yield name
    for _ in range(20):  # the engine lets go of a container a moment after it has ended
        if subprocess.run([*docker_backend.call, "network", "rm", name], capture_output=True).returncode == 0:
            break
        time.sleep(0.5)


@pytest.mark.slow
def test_two_hosts_meet_and_train_as_one(network: str, tmp_path: Path, environ: dict[str, str]) -> None:
    projects = [Project(tmp_path / f"host{rank}", "docker", environ, ["docker"]) for rank in (0, 1)]

    def join(rank: int) -> None:
        words = ("digits", "--gpus", "none", "--nodes", HOSTS, "--network", network, "--rank-of", str(rank))
        projects[rank].run(*words, "--", "--epochs", "2")

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(join, (0, 1)))
        receipts = [project.receipt() for project in projects]
        output = "".join(project.output() for project in projects)
        assert "batch 64 on each of 2 ranks, 128 together" in output and output.count("epoch 2:") == 1
        assert [receipt["header"]["part"] for receipt in receipts] == [
            f"node {rank} of 2; together: seatrial-digits-2" for rank in (0, 1)
        ]
        saved = [one["verdict"] for receipt in receipts for one in receipt["criteria"] if one["id"] == "model-saved"]
        assert sorted(saved) == ["not judged", "pass"]
    finally:
        for project in projects:
            project.clean()


def test_without_a_number_every_host_is_reported_what_to_type(tmp_path: Path, environ: dict[str, str]) -> None:
    project = Project(tmp_path / "project", "docker", environ, ["docker"])
    reported = project.run("digits", "--gpus", "none", "--nodes", HOSTS, exit_code=None).stdout
    assert f"seatrial run --trust --on docker digits --gpus none --nodes {HOSTS} --rank-of 1" in reported
    assert "--rdzv-endpoint node0:29400" in reported and "srun --nodes 2" in reported
