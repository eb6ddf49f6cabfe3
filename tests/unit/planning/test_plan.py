"""make_plan on every backend: what differs between places, targets, GPUs and nodes, to be read side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from planning_sites import READY, a_site
from seatrial.errors import SeatrialError
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.job.tables import Changes
from seatrial.planning.plan import make_plan, with_defaults

BACKENDS = ("docker", "podman", "local", "k8s")
TARGETS = {
    "script": Target(kind="script", value="train.py", args=("--epochs", "5")),
    "ddp": Target(kind="script", value="ddp.py"),
    "module": Target(kind="module", value="trainer"),
    "recipe": Target(kind="recipe", value="mnist-deep"),
    "matmul": Target(kind="recipe", value="matmul"),
    "bench": Target(kind="recipe", value="bench", args=("mnist",)),
    "image": Target(kind="image", value="", args=("train", "--fast")),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "mnist"
    made.mkdir()
    (made / "train.py").write_text("print('one process')\n")
    (made / "ddp.py").write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    (made / "trainer.py").write_text("print('a module')\n")
    return made


def plan_of(backend: str, project: Path, target: Target, gpus: int, nodes: int) -> Plan:
    hosts = {"hosts": ("a", "b"), "node_rank": 1} if nodes == 2 and backend != "k8s" else {}
    job = Job(
        project=project,
        target=target,
        backend=backend,
        gpus=str(gpus) if gpus else "none",
        nodes=nodes,
        image=ImageOptions(ready=READY),
        **hosts,  # type: ignore[arg-type]
    )
    site = a_site(backend, project.parent, project, gpus=gpus)
    return make_plan(with_defaults(job, site.backend.traits), site, script_facts(target, project))


def test_changes_of_another_script_are_left_out_with_a_sentence(project: Path) -> None:
    plans = {}
    for name in ("script", "ddp"):
        target = TARGETS[name]
        job = Job(project=project, target=target, gpus="none", tune=Changes(script="train.py", workers=4))
        site = a_site("local", project.parent, project, gpus=0)
        plans[name] = make_plan(with_defaults(job, site.backend.traits), site, script_facts(target, project))
    assert plans["script"].agent.changes == {"workers": 4} and plans["ddp"].agent.changes is None
    [choice] = [each for each in plans["ddp"].choices if each.what == "changes"]
    assert choice.value == "none"
    assert choice.reason == "[tune] was measured on train.py; for this one: seatrial tune ddp.py --save"


def reported(plan: Plan, folder: Path) -> str:
    """Return the lines that a reviewer looks for."""
    agent, count = plan.agent, len(plan.agent.gpus) or plan.agent.gpu_count or 0
    nodes = f"{agent.processes} processes on each of {agent.nodes} nodes"
    lines = [
        "runs      " + " ".join(agent.argv),
        f"in        {agent.workdir}, outputs in {agent.run_dir}",
        f"as        {agent.launcher}, {nodes}, {agent.restarts} restarts",
        f"meets at  {agent.rendezvous}, as node {agent.node_rank} {agent.node_rank_variable or ''}".rstrip(),
        f"GPUs      {agent.gpu_mode}, {count} by {plan.injection}, check {agent.check}",
        "told      " + " ".join(f"{name}={value}" for name, value in agent.env.items()),
        f"evidence  {agent.evidence_dir or 'in the log'}",
    ]
    if plan.container is not None:
        lines.append("mounts    " + " ".join(mount.target for mount in plan.container.mounts))
        lines.append(f"network   {plan.container.network}")
    if plan.cluster is not None:
        pods = plan.cluster
        lines.append(f"pods      {pods.nodes} × {pods.gpus} GPUs as {pods.kind}, code {pods.code}")
    lines += [f"warning   {warning}" for warning in plan.warnings]
    text = "\n".join(lines).replace(str(folder), "~")
    return text.replace(plan.python, "PYTHON") if plan.python else text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_plan(backend: str, target: str, project: Path, snapshot: SnapshotAssertion) -> None:
    reported_all = []
    for nodes in (1, 2):
        for gpus in (0, 1, 2):
            try:
                text = reported(plan_of(backend, project, TARGETS[target], gpus, nodes), project.parent)
            except SeatrialError as error:
                text = f"refused   {error.message}".replace(str(project.parent), "~")
            reported_all.append(f"=== {target} on {backend}, {gpus} GPUs, {nodes} node{'s' * (nodes > 1)}\n{text}")
    assert "\n".join(reported_all) == snapshot


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("recipe", "launcher"), [("mnist", "torchrun"), ("matmul", "torchrun"), ("bench", "none")])
def test_one_rule_chooses_the_launcher_of_a_recipe(backend: str, recipe: str, launcher: str, project: Path) -> None:
    """matmul measures every GPU, by a rank for each; bench starts torchrun itself."""
    plan = plan_of(backend, project, Target(kind="recipe", value=recipe), gpus=2, nodes=1)
    assert plan.agent.launcher == launcher
    assert plan.agent.processes == (2 if launcher == "torchrun" else 1)
