"""Scripts that use Ray themselves: packages with extras, one process, room for its object store, no statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planning_sites import a_site
from seatrial.images.requirements.project import project_needs
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning.launcher import choose_launcher
from seatrial.planning.plan import make_plan

TUNE = "from ray import tune\n"
TRAIN = """
import torch
from ray.train.torch import TorchTrainer, prepare_model
def loop():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    torch.distributed.init_process_group("nccl")
def main():
    TorchTrainer(loop).fit()
main()
"""
GIB = 2**30
STORE = "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"


def facts(project: Path, source: str) -> ScriptFacts:
    (project / "train.py").write_text(source)
    return script_facts(Target(kind="script", value="train.py"), project)


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        (TUNE, {"ray", "ray[tune]"}),
        ("import ray.tune\n", {"ray", "ray[tune]"}),
        ("from ray.tune.schedulers import ASHAScheduler\n", {"ray", "ray[tune]"}),
        ("from ray.tune.search.optuna import OptunaSearch\n", {"ray", "ray[tune]", "optuna"}),
        ("from ray.tune.search.hyperopt import HyperOptSearch\n", {"ray", "ray[tune]", "hyperopt"}),
        ("import ray\nfrom ray import train, tune\n", {"ray", "ray[train]", "ray[tune]"}),
        ("import ray\n", {"ray"}),
        ("import raytracing_of_ones_own\n", {"raytracing-of-ones-own"}),
    ],
)
def test_extras_come_from_the_imports(tmp_path: Path, source: str, packages: set[str]) -> None:
    needs = project_needs(tmp_path, facts(tmp_path, source), tmp_path)
    assert set(needs.requirements.lines) == packages


@pytest.mark.parametrize("source", [TUNE, TRAIN])
def test_it_is_one_process_for_all_gpus(tmp_path: Path, source: str) -> None:
    script = facts(tmp_path, source)
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    assert choose_launcher(job, script, 4)[0] == "none"
    assert script.multi_gpu_evidence is not None, "--gpus auto takes all: Ray would"
    assert script.launcher_evidence is None


def planned(tmp_path: Path, source: str, backend: str = "docker", gpus: int = 0, **keys: Any) -> Plan:
    project = tmp_path / "project"
    project.mkdir()
    script = facts(project, source)
    job = Job(
        project=project,
        target=Target(kind="script", value="train.py"),
        image=ImageOptions(ready="registry.test/train:1"),
        **keys,
    )
    return make_plan(job, a_site(backend, tmp_path, project, gpus=gpus), script)


def test_shm_has_space_for_the_store_and_for_loaders(tmp_path: Path) -> None:
    plan = planned(tmp_path, TUNE, gpus=2)
    assert plan.container is not None
    memory = plan.container.memory_bytes
    assert memory is not None
    store = int(0.3 * memory)
    assert plan.container.shm_bytes == 4 * GIB + int(store / 0.95)
    assert int(plan.agent.env[STORE]) >= store, "what Ray takes by default, it gets"
    assert plan.agent.env["RAY_USAGE_STATS_ENABLED"] == "0"
    reported = next(choice for choice in plan.choices if choice.what == "/dev/shm")
    assert "object store of Ray (train.py:1 ray)" in reported.reason


@pytest.mark.parametrize(
    ("keys", "shm_bytes"),
    [({"shm_bytes": 3 * GIB}, 3 * GIB), ({"memory_bytes": 4 * GIB}, 2 * GIB), ({"memory_bytes": 64 * GIB}, None)],
)
def test_rays_store_always_fits_into_shm(tmp_path: Path, keys: dict[str, int], shm_bytes: int | None) -> None:
    """Where it does not, Ray goes to /tmp and warns."""
    plan = planned(tmp_path, TUNE, **keys)
    assert plan.container is not None
    assert shm_bytes in (plan.container.shm_bytes, None)
    assert int(plan.agent.env[STORE]) <= 0.95 * plan.container.shm_bytes


def test_a_pod_gets_the_same(tmp_path: Path) -> None:
    plan = planned(tmp_path, TUNE, "k8s", memory_bytes=64 * GIB)
    assert plan.cluster is not None
    assert plan.cluster.shm_bytes == 2 * GIB + int(int(0.3 * 64 * GIB) / 0.95)
    assert plan.agent.env["RAY_USAGE_STATS_ENABLED"] == "0"
