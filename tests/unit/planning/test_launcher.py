"""The launcher of a script: ranks by option, one process for TensorFlow and JAX, and several machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster_plans import a_cluster_plan
from planning_sites import facts_of
from seatrial.agent import target
from seatrial.agent.target import command
from seatrial.common.agent_plan import AgentPlan
from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts
from seatrial.planning.launcher import choose_launcher, expand, instructions, join, meeting, slurm_hosts, with_rank
from seatrial.planning.process import candidates, missing_in
from seatrial.system.host import Host
from tables import cases, constant

RANKED = """
import argparse
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
if args.local_rank != -1:
    dist.init_process_group("gloo")
print(f"rank {args.local_rank} of {args.out}\\n", end="", flush=True)
"""


def a_job(folder: Path = Path("/p"), *args: str, **fields: Any) -> Job:
    return Job(project=folder, target=Target(kind="script", value="train.py", args=args), **fields)


def _planned(folder: Path, gpus: int, *args: str) -> tuple[str, tuple[str, ...], str]:
    job, script = a_job(folder, *args), facts_of(folder, RANKED)
    launcher, choice = choose_launcher(job, script, gpus)
    return launcher, with_rank((sys.executable, "train.py", *args), job, script, launcher), choice.reason


def test_option_of_a_rank_is_added_on_several_gpus_unless_typed(tmp_path: Path) -> None:
    launcher, argv, _ = _planned(tmp_path, 1, "here")
    assert (launcher, argv[1:]) == ("none", ("train.py", "here"))
    _, argv, reason = _planned(tmp_path, 2, "here", "--local_rank=0")
    assert argv[1:] == ("train.py", "here", "--local_rank=0") and "is given" not in reason


def test_each_rank_gets_its_number(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher, argv, reason = _planned(tmp_path, 2, "here")
    assert launcher == "torchrun" and reason.endswith("; each rank gets --local_rank")
    plan = AgentPlan(run_id="r", argv=list(argv), workdir="/", run_dir="/", script=1, launcher=launcher, processes=2)
    ended = subprocess.run(command(plan), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert sorted(ended.stdout.splitlines()) == ["rank 0 of here", "rank 1 of here"]


SCRIPTS = constant(__file__, "SCRIPTS")


@pytest.mark.parametrize("name", SCRIPTS)
def test_tensorflow_and_jax_are_one_process_a_node_and_must_join_the_other(tmp_path: Path, name: str) -> None:
    script = facts_of(tmp_path, SCRIPTS[name])
    launcher, choice = choose_launcher(a_job(tmp_path), script, 2)
    assert (launcher, choice.value) == ("none", "none")
    assert (script.multi_gpu_evidence is None) == (name == "plain"), "--gpus auto takes them all where one is used"
    two_nodes = a_job(tmp_path, nodes=2, hosts=("a", "b"), node_rank=1)
    if name in ("workers", "old workers", "jax processes"):
        launcher, choice = choose_launcher(two_nodes, script, 1)
        assert launcher == "none" and ("JAX_COORDINATOR_ADDRESS" if "jax" in name else "TF_CONFIG") in choice.reason
    else:
        with pytest.raises(UsageError, match="on 2 nodes independently") as refused:
            choose_launcher(two_nodes, script, 1)
        assert "torchrun" not in str(refused.value.run), "the next command must not be torch's"


def test_every_host_knows_all_of_them(tmp_path: Path) -> None:
    placed = meeting(a_job(tmp_path, nodes=3, hosts=("a", "b", "a"), node_rank=2))
    assert placed.workers == ("a:29400", "b:29400", "a:29401")
    plan = AgentPlan("id", [], "/", "/", nodes=3, node_rank=2, workers=list(placed.workers))
    variables = target.variables(plan)
    cluster, task = {"worker": list(placed.workers)}, {"type": "worker", "index": 2}
    assert json.loads(variables.pop("TF_CONFIG")) == {"cluster": cluster, "task": task}
    of_jax = {"COORDINATOR_ADDRESS": "a:29400", "NUM_PROCESSES": "3", "PROCESS_ID": "2"}
    assert variables == {f"JAX_{name}": value for name, value in of_jax.items()}
    assert target.variables(plan._replace(workers=[])) == {}, "under torchrun torchrun sets them"


def test_a_pytorchjob_has_names_for_its_first_pod_alone(tmp_path: Path) -> None:
    project = tmp_path / "p"
    project.mkdir()
    with pytest.raises(UsageError, match="names to its first pod alone") as refused:
        a_cluster_plan(project, script=SCRIPTS["workers"], gpus="1", nodes=2, kubernetes={"kind": "pytorchjob"})
    assert "--kind job" in str(refused.value.run)


def test_instructions_for_the_other_hosts_fit_the_framework(tmp_path: Path) -> None:
    job = join(a_job(tmp_path, backend="docker", gpus="2", hosts=("a", "b"), nodes=2), None, Host({}))
    text = instructions(job, ["run", "train.py", "--nodes", "a,b", "--", "--epochs", "5"], ScriptFacts())
    assert "  b:  seatrial run train.py --nodes a,b --rank-of 1 -- --epochs 5\n" in text
    assert "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint a:29400" in text
    assert "srun --nodes 2 --ntasks-per-node 1 seatrial run train.py --nodes slurm -- --epochs 5" in text
    for name, words in (("workers", '"task": {"type": "worker", "index": N}'), ("jax processes", "_ADDRESS=a:29400")):
        text = instructions(job, ["run", "train.py", "--nodes", "a,b"], facts_of(tmp_path, SCRIPTS[name]))
        assert "torchrun" not in text and words in text


@cases("listed", "names")
def test_lists_of_hosts_of_slurm_are_expanded(listed: str, names: tuple[str, ...]) -> None:
    assert tuple(expand(listed)) == names


def test_slurm_expands_its_lists_itself_and_numbers_each_task(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames r[1-2]n[1-2]" ] && printf "r1n1\\nr1n2\\nr2n1\\nr2n2\\n"\n')
    program.chmod(0o755)
    environ = {"SLURM_JOB_NODELIST": "r[1-2]n[1-2]", "PATH": str(tmp_path)}
    assert slurm_hosts(Host(environ)) == ("r1n1", "r1n2", "r2n1", "r2n2")
    program.write_text("#!/bin/sh\necho slurm_load_jobs error >&2\nexit 1\n")
    environ |= {"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_NODEID": "1"}
    joined = join(a_job(hosts=("slurm",), nodes=1), None, Host(environ))
    assert (joined.hosts, joined.nodes, joined.node_rank) == (("gpu1", "gpu2"), 2, 1)
    placed = meeting(joined)
    assert (placed.nodes, placed.node_rank, placed.rendezvous) == (2, 1, "gpu1:29400")


@pytest.mark.parametrize(
    ("changes", "rank", "words"),
    [
        ({"nodes": 2}, None, "need their names"),
        ({"hosts": ("a", "b"), "nodes": 2}, 2, "there are 2 hosts"),
        ({"hosts": ("slurm",)}, None, "not a Slurm job"),
        ({"backend": "k8s", "hosts": ("a", "b")}, None, "on Kubernetes --nodes takes a number"),
        ({}, 0, "--rank-of needs"),
    ],
)
def test_hosts_that_cannot_be_intended_are_refused(changes: dict[str, Any], rank: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        join(a_job(**{"backend": "docker", "gpus": "2", **changes}), rank, Host({}))


def test_python_of_a_local_run_is_looked_for_once_in_each_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ours/bin/python", "ours/bin/python3", "other/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    own = tmp_path / "ours" / "bin" / "python3"
    monkeypatch.setattr(sys, "executable", str(own))
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "ours")})) == [own]
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "other")})) == [tmp_path / "other" / "bin" / "python", own]
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "gone")})) == candidates(Host({})) == [own]
    conda = {"CONDA_PREFIX": str(tmp_path / "other")}
    assert candidates(Host(conda)) == [tmp_path / "other" / "bin" / "python", own]
    assert candidates(Host({**conda, "VIRTUAL_ENV": str(tmp_path / "ours")})) == [own]


def test_an_environments_python_that_does_not_start_has_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert missing_in(python, ()) and not missing_in(Path(sys.executable), ("json",))
