"""Several machines without Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.planning.launcher import expand, instructions, join, meeting, slurm_hosts
from seatrial.system.host import Host

JOB = Job(project=Path("/p"), target=Target(kind="script", value="train.py"), backend="docker", gpus="2")


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("gpu[1,3-4]-ib,login", ["gpu1-ib", "gpu3-ib", "gpu4-ib", "login"]),
    ],
)
def test_slurms_lists_of_hosts(listed: str, names: list[str]) -> None:
    assert expand(listed) == names


def test_where_slurm_is_it_expands_its_lists_itself(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames r[1-2]n[1-2]" ] && printf "r1n1\\nr1n2\\nr2n1\\nr2n2\\n"\n')
    program.chmod(0o755)
    environ = {"SLURM_JOB_NODELIST": "r[1-2]n[1-2]", "PATH": str(tmp_path)}
    assert slurm_hosts(Host(environ)) == ("r1n1", "r1n2", "r2n1", "r2n2")
    program.write_text("#!/bin/sh\necho slurm_load_jobs error >&2\nexit 1\n")
    assert slurm_hosts(Host({**environ, "SLURM_JOB_NODELIST": "a[1-2]"})) == ("a1", "a2")


def test_slurm_reports_every_task_who_it_is() -> None:
    environ = {"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_NODEID": "1"}
    joined = join(JOB.model_copy(update={"hosts": ("slurm",), "nodes": 1}), None, Host(environ))
    assert (joined.hosts, joined.nodes, joined.node_rank) == (("gpu1", "gpu2"), 2, 1)
    placed = meeting(joined)
    assert (placed.nodes, placed.rank, placed.rendezvous) == (2, 1, "gpu1:29400")


@pytest.mark.parametrize(
    ("changes", "rank", "prints"),
    [
        ({"nodes": 2}, None, "need their names"),
        ({"hosts": ("a", "b"), "nodes": 2}, 2, "there are 2 hosts"),
        ({"hosts": ("slurm",)}, None, "not a Slurm job"),
        ({"backend": "k8s", "hosts": ("a", "b")}, None, "on Kubernetes --nodes takes a number"),
        ({}, 0, "--rank-of needs"),
    ],
)
def test_what_cannot_be_intended(changes: dict[str, object], rank: int | None, prints: str) -> None:
    with pytest.raises(UsageError, match=prints):
        join(JOB.model_copy(update=changes), rank, Host({}))


def test_what_to_type() -> None:
    job = join(JOB.model_copy(update={"hosts": ("a", "b"), "nodes": 2}), None, Host({}))
    text = instructions(job, ["run", "train.py", "--nodes", "a,b", "--", "--epochs", "5"])
    assert "  b:  seatrial run train.py --nodes a,b --rank-of 1 -- --epochs 5\n" in text
    assert "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint a:29400" in text
    assert "srun --nodes 2 --ntasks-per-node 1 seatrial run train.py --nodes slurm -- --epochs 5" in text
