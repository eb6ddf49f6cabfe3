"""seatrial build for real: each framework's image is built, verified inside, slimmed and weighed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli_project import Project

SCRIPTS = {
    "torch": "import torch\nprint(torch.__version__)\n",
    "tensorflow": "import tensorflow as tf\nprint(tf.__version__)\n",
    "jax": "import jax\nprint(jax.__version__)\n",
    "transformers": "import torch\nfrom transformers import BertConfig, BertForSequenceClassification\n",
}

pytestmark = pytest.mark.docker


def built(project: Project, script: str, *arguments: str) -> dict[str, Any]:
    (project.folder / "train.py").write_text(script)
    (project.folder / "seatrial.toml").write_text('[image]\nbuild_network = "host"\n')
    ended = project.cli("build", "train.py", "--gpus", "none", "--on", "docker", "--json", *arguments, timeout_s=900)
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_torch_is_proven_and_an_edit_rebuilds_nothing(docker_project: Project) -> None:
    first = built(docker_project, SCRIPTS["torch"])
    assert first["verification"]["versions"]["torch"].startswith("2.13.0")
    assert first["verification"]["training"]
    (docker_project.folder / "train.py").write_text("import torch\nprint('edited')\n")
    plan = docker_project.cli("plan", "train.py", "--gpus", "none", "--on", "docker", "--json", exit_code=0)
    assert json.loads(plan.stdout)["image"]["tag"] == first["tag"]


@pytest.mark.slow
def test_slimmed_torch_gives_the_same_weights(docker_project: Project) -> None:
    whole = built(docker_project, SCRIPTS["torch"])
    slim = built(docker_project, SCRIPTS["torch"], "--slim", "files")
    assert slim["verification"]["training"] == whole["verification"]["training"]
    assert slim["size_bytes"] - slim["base_bytes"] <= 750_000_000
    assert whole["size_bytes"] - slim["size_bytes"] > 150_000_000


@pytest.mark.slow
@pytest.mark.timeout(1500)  # two builds
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_slimmed_tensorflow_and_jax_give_the_same_weights(docker_project: Project, framework: str) -> None:
    (docker_project.folder / "requirements.txt").write_text("jax==0.10.2\n" if framework == "jax" else "tensorflow\n")
    whole = built(docker_project, SCRIPTS[framework])
    slim = built(docker_project, SCRIPTS[framework], "--slim", "unused")
    assert slim["verification"]["training"] == whole["verification"]["training"] is not None
    assert whole["size_bytes"] - slim["size_bytes"] > 50_000_000


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["tensorflow", "transformers"])
def test_other_frameworks_are_built_and_proven(docker_project: Project, framework: str) -> None:
    answer = built(docker_project, SCRIPTS[framework])
    assert framework in answer["verification"]["import_s"]


@pytest.mark.slow
def test_over_the_budget_names_the_largest_parts(docker_project: Project) -> None:
    built(docker_project, SCRIPTS["torch"])
    (docker_project.folder / "seatrial.toml").write_text('[image]\nbuild_network = "host"\nmax_size = "500MB"\n')
    ended = docker_project.cli("build", "train.py", "--gpus", "none", "--on", "docker", exit_code=5)
    assert "image.max_size is 0.50 GB" in ended.stderr
    assert "the largest parts: torch" in ended.stderr
