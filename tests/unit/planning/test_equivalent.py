"""Plans printed for others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import a_container, a_plan
from planning_sites import GPUS, SCRIPT, a_host, a_site, facts_of
from seatrial.common.agent_plan import AgentPlan
from seatrial.errors import GpuContractError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import DataMount
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Gpu, ImagePlan, Mount, Plan
from seatrial.job.script import script_facts
from seatrial.planning.host import another_machine, refuse_without_gpu
from seatrial.planning.plan import make_plan
from seatrial.planning.portable import as_compose, as_docker, devcontainer, write_devcontainer
from tables import cases

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


def test_docker_run_quotes_a_mount_as_the_engine_reads_it() -> None:
    mounts = (Mount(source=Path("/my, data"), target="/data", read_only=True),)
    words = shlex.split(as_docker(a_plan(container=a_container(mounts=mounts))).replace("\\\n", " "), comments=True)
    assert 'type=bind,"source=/my, data",target=/data,readonly' in words


@pytest.mark.parametrize("form", [as_docker, as_compose])
def test_a_local_plan_has_neither(form: Callable[[Plan], str]) -> None:
    with pytest.raises(UsageError, match="no container"):
        form(a_plan(container=None, image=None, backend="local"))


# ------------------------------------------------------------- devcontainer


def planned_of_devcontainer(project: Path, gpus: str = "auto", **job: Any) -> Plan:
    texts = {"framework/requirements.txt": "torch==2.13.0\n"}
    image = ImagePlan(tag="seatrial/x:1", build=True, dockerfile="FROM debian\nUSER 1000:1000\n", context_texts=texts)
    target = Target(kind="script", value="train.py")
    requested = Job(project=project, target=target, gpus=GpuRequest.parse(gpus), **job)
    return a_plan(job=requested, image=image, container=a_container(shm_bytes=1 << 31))


def test_folders_of_the_project_are_where_a_run_has_them_and_others_are_not_reported(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    data = DataMount(source=project / "data", read_only=True)
    models = DataMount(source=project / "out" / "models", read_only=False)
    made = devcontainer(planned_of_devcontainer(project, data=data, models=models))
    assert made["mounts"] == [
        "source=${localWorkspaceFolder}/data,target=/data,type=bind,readonly",
        "source=${localWorkspaceFolder}/out/models,target=/models,type=bind",
    ]
    assert made["initializeCommand"] == ["mkdir", "-p", "out/models"]  # a mount's source must be there
    assert made["containerEnv"] == {"SEATRIAL_DATA_DIR": "/data", "SEATRIAL_MODELS_DIR": "/models"}
    private = DataMount(source=tmp_path / "private", read_only=True)
    elsewhere = devcontainer(planned_of_devcontainer(project, data=private))
    assert "mounts" not in elsewhere and str(tmp_path) not in json.dumps(elsewhere)


def test_the_folder_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    written = write_devcontainer(planned_of_devcontainer(tmp_path))
    assert written == ["Dockerfile", "devcontainer.json", "framework/requirements.txt", "tools/layer.py"]
    dockerfile = (tmp_path / ".devcontainer" / "Dockerfile").read_text()
    assert dockerfile.startswith("FROM debian\nUSER 1000:1000\n") and dockerfile.endswith("\nUSER dev\n")
    assert json.loads((tmp_path / ".devcontainer" / "devcontainer.json").read_text())["remoteUser"] == "dev"
    assert list(tmp_path.iterdir()) == [tmp_path / ".devcontainer"]
    with pytest.raises(UsageError, match="is there already"):
        write_devcontainer(planned_of_devcontainer(tmp_path))


# ---------------------------------------------------------- another machine


def a_job(project: Path, gpus: str = "auto", target: str = "h100") -> Job:
    facts_of(project, "import common\nimport torch\n", common="")
    script = SCRIPT.with_args("--note", "a $HOME 'b'")
    return Job(project=project, target=script, gpus=GpuRequest.parse(gpus), image=ImageOptions(target=target))


def planned_of_machine(folder: Path, gpus: str = "auto", *, here: int = 0, target: str = "h100") -> Plan:
    job = a_job(folder / "project", gpus, target)
    site = a_site("docker", folder, job.project, gpus=here)
    another = another_machine(job, site.host)
    assert another is not None
    site = site._replace(another=another, selection=another.selection())
    return make_plan(job, site, script_facts(job.target, job.project))


@cases("gpus", "flag", "reserved")
def test_the_other_machines_gpus_are_requested(tmp_path: Path, gpus: str, flag: str, reserved: dict[str, Any]) -> None:
    plan = planned_of_machine(tmp_path, gpus)
    assert plan.container is not None and plan.container.gpus_flag == flag
    assert plan.gpus == () and plan.agent.gpu_mode == "required"
    assert "NVIDIA_VISIBLE_DEVICES" not in plan.container.env and "CUDA_VISIBLE_DEVICES" not in plan.container.env
    assert plan.container.memory_bytes is None, "this machine's memory does not limit another"
    service = yaml.safe_load(as_compose(plan))["services"]["train"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", **reserved, "capabilities": ["gpu"]}
    ]
    assert plan.image is not None and plan.image.stack["build"] == "cu130"


def test_the_compose_file_builds_its_image_and_names_nothing_of_this_machine(tmp_path: Path) -> None:
    text = as_compose(planned_of_machine(tmp_path, "2"))
    assert str(tmp_path) not in text
    service = yaml.safe_load(text)["services"]["train"]
    assert service["volumes"] == [{"type": "bind", "source": ".", "target": "/workspace", "read_only": False}]
    dockerfile = service["build"]["dockerfile_inline"]
    assert "torch==2.13.0" in dockerfile and "--mount" not in dockerfile
    assert "image" not in service and "pull_policy" not in service
    assert service["command"][-1] == "a $$HOME 'b'"


def test_a_machine_with_other_gpus_gives_none_of_them(tmp_path: Path) -> None:
    plan = planned_of_machine(tmp_path, here=2, target="a100")
    assert plan.gpus == () and plan.container is not None and plan.container.gpus_flag == "1"
    assert plan.driver_version is None


def test_a_run_for_a_gpu_is_no_cpu_run(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    with pytest.raises(GpuContractError, match="built for h100, and this machine has no NVIDIA GPU"):
        refuse_without_gpu(a_job(tmp_path / "project"), host)
    refuse_without_gpu(a_job(tmp_path / "project", "none"), host)
    refuse_without_gpu(a_job(tmp_path / "project"), a_host(tmp_path, GPUS))
