"""Plans printed for others."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from fakes import a_container, a_plan
from seatrial.common.contract.agent_plan import AgentPlan
from seatrial.errors import UsageError
from seatrial.job.plan import Gpu, Mount, Plan
from seatrial.planning.portable import as_compose, as_docker

GPU = Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", memory_bytes=1, compute_capability="9.0")


def planned(**container: object) -> Plan:
    mounts = (
        Mount(source="/home/me/project", target="/workspace"),
        Mount(source="/home/me/.seatrial/runs/20261120-000000-test/home", target="/home/seatrial"),
        Mount(source="/cache/agent.pyz", target="/seatrial/agent.pyz", read_only=True),
    )
    agent = AgentPlan(
        run_id="20261120-000000-test",
        argv=("python3", "train.py", "--note", "a $b"),
        script=1,
        workdir="/workspace",
        run_dir="/seatrial/run",
        launcher="torchrun",
        processes=2,
        env={"SEATRIAL_EVENTS": "/seatrial/run/x", "OMP_NUM_THREADS": "4"},
    )
    made = a_container(mounts=mounts, gpus_flag='"device=GPU-1"', user="1000:1000", **container)
    return a_plan(agent=agent, container=made, gpus=(GPU,))


def test_docker_run() -> None:
    words = shlex.split(as_docker(planned()).replace("\\\n", " "), comments=True)
    assert words[:2] == ["docker", "run"]
    assert words[words.index("--gpus") + 1] == '"device=GPU-1"'
    assert "type=bind,source=/home/me/project,target=/workspace" in words
    assert "OMP_NUM_THREADS=4" in words
    assert "/home/seatrial:exec,mode=1777" in words
    assert not [word for word in words if "/seatrial/" in word or "SEATRIAL" in word]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert words[-8:] == ["python3", *torchrun, "train.py", "--note", "a $b"]


@pytest.mark.parametrize("form", [as_docker, as_compose])
def test_a_local_plan_has_neither(form: Callable[[Plan], str]) -> None:
    with pytest.raises(UsageError, match="no container"):
        form(a_plan(container=None, image=None, backend="local"))
