"""A script that uses ray.tune itself, as its users write it, in a container: nothing of it is changed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project
from seatrial.backends.containers.docker_and_podman import Docker

pytestmark = [pytest.mark.slow, pytest.mark.docker]

SCRIPT = """
import os, time
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def objective(config):
    for step in range(config["steps"]):
        time.sleep(0.1)
        tune.report({"loss": abs(config["x"]) / (step + 1), "worker": os.getpid()})


if __name__ == "__main__":
    tuner = tune.Tuner(
        objective,
        param_space={"x": tune.uniform(-1, 1), "steps": int(os.environ.get("STEPS", 3))},
        tune_config=tune.TuneConfig(num_samples=3, metric="loss", mode="min", scheduler=ASHAScheduler()),
    )
    results = tuner.fit()
    print("trials", len(results), "errors", results.num_errors)
"""


@pytest.fixture
def project(tmp_path: Path, environ: dict[str, str], docker_backend: Docker) -> Iterator[Project]:
    made = Project(tmp_path / "ray-script", "docker", environ, docker_backend.call)
    made.write("search.py", SCRIPT)
    yield made
    made.clean()
    images = subprocess.run(["docker", "images", "-q", "seatrial/ray-script"], capture_output=True, text=True)
    subprocess.run(["docker", "image", "rm", "--force", *images.stdout.split()], capture_output=True)


def test_ray_tune_runs_as_it_is_and_leaves_nothing(project: Project) -> None:
    project.cli("run", "search.py", "--on", "docker", "--gpus", "none", timeout_s=290)
    assert "trials 3 errors 0" in project.output()
    reported = project.output("stderr") + project.output()
    for unwanted in ("/dev/shm", "usage stats", "slow storage"):
        assert unwanted not in reported.lower(), unwanted
    receipt = project.receipt()
    assert receipt["exit_cause"]["id"] == "finished"
    assert max(sample["processes"] for sample in project.events("sample")) > 6, "Ray's own processes are seen"
    results = project.folder / ".seatrial" / "runs" / project.last.name / "home" / "ray_results"
    assert len(list(results.glob("*/*/result.json"))) == 3
    assert not project.containers()


def test_stopped_in_the_middle_it_ends_whole(project: Project) -> None:
    project.cli("run", "search.py", "--on", "docker", "--gpus", "none", "--detach", "-e", "STEPS=3000", timeout_s=290)
    project.wait_for(lambda: "started with configuration" in project.output())
    began = time.monotonic()
    project.cli("runs", "stop", project.last.name, exit_code=None)
    assert time.monotonic() - began < 45
    assert project.receipt()["exit_cause"]["id"] == "stopped"
    assert not project.containers()
    assert not project.alive()
