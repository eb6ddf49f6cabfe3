"""The development container for real: Docker builds what seatrial init writes, and its user trains in it."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest

from cli_project import Project

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_it_is_built_and_its_user_runs_the_script(docker_project: Project) -> None:
    docker_project.write("train.py", "import os, getpass; print(getpass.getuser(), os.path.expanduser('~'))\n")
    docker_project.write("seatrial.toml", 'target = "train.py"\ngpus = "none"\n[image]\nbuild_network = "host"\n')
    docker_project.cli("init", "--devcontainer")
    folder = docker_project.folder / ".devcontainer"
    reported = json.loads((folder / "devcontainer.json").read_text())
    tag = f"seatrial-test-devcontainer:{uuid.uuid4().hex[:8]}"
    engine = docker_project.engine
    subprocess.run(
        [*engine, "build", *reported["build"]["options"], "-t", tag, str(folder)], check=True, capture_output=True
    )
    try:
        mount = reported["workspaceMount"].replace("${localWorkspaceFolder}", str(docker_project.folder))
        argv = [
            *engine,
            "run",
            "--rm",
            "--mount",
            mount,
            *reported["runArgs"],
            "--workdir",
            reported["workspaceFolder"],
            tag,
        ]
        done = subprocess.run([*argv, "python", "train.py"], check=True, capture_output=True, text=True)
        assert done.stdout == "dev /home/dev\n"
    finally:
        subprocess.run([*engine, "image", "rm", tag], check=True, capture_output=True)


def test_one_for_another_machine_is_not_reported_to_be_this_ones(docker_project: Project) -> None:
    docker_project.write("train.py", "import torch\n")
    reported = docker_project.cli("init", "--devcontainer", "--target", "a100").stderr
    assert ".devcontainer written" in reported and "machine without a GPU" not in reported
