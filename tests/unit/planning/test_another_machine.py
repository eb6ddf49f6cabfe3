"""A plan for a machine that is only described, made where there is no GPU or another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planning_sites import GPUS, a_host, a_site
from seatrial.errors import GpuContractError
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.planning.host import another_machine, refuse_without_gpu
from seatrial.planning.plan import make_plan
from seatrial.planning.portable import as_compose
from tables import cases

SCRIPT = Target(kind="script", value="tools/train.py", args=("--note", "a $HOME 'b'"))


def a_job(project: Path, gpus: str = "auto", target: str = "h100", **image: Any) -> Job:
    (project / "tools").mkdir(parents=True, exist_ok=True)
    (project / "tools" / "train.py").write_text("import common\nimport torch\n")
    (project / "common.py").touch()
    return Job(project=project, target=SCRIPT, gpus=gpus, image=ImageOptions(target=target, **image))  # type: ignore[arg-type]


def planned(folder: Path, gpus: str = "auto", *, here: int = 0, backend: str = "docker", **image: Any) -> Plan:
    job = a_job(folder / "project", gpus, **image)
    site = a_site(backend, folder, job.project, gpus=here)
    another = another_machine(job, site.host)
    assert another is not None
    site = replace(site, another=another, selection=another.selection())
    return make_plan(job, site, script_facts(job.target, job.project))


@cases("gpus", "flag", "reserved")
def test_the_other_machines_gpus_are_requested(tmp_path: Path, gpus: str, flag: str, reserved: dict[str, Any]) -> None:
    plan = planned(tmp_path, gpus)
    assert plan.container is not None and plan.container.gpus_flag == flag
    assert plan.gpus == () and plan.agent.gpu_mode == "required"
    assert "NVIDIA_VISIBLE_DEVICES" not in plan.container.env and "CUDA_VISIBLE_DEVICES" not in plan.container.env
    assert plan.container.memory_bytes is None, "this machine's memory is no limit there"
    service = yaml.safe_load(as_compose(plan))["services"]["train"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", **reserved, "capabilities": ["gpu"]}
    ]
    assert plan.image is not None and plan.image.stack["build"] == "cu130"


def test_the_compose_file_builds_its_image_and_names_nothing_of_this_machine(tmp_path: Path) -> None:
    text = as_compose(planned(tmp_path, "2"))
    assert str(tmp_path) not in text
    service = yaml.safe_load(text)["services"]["train"]
    assert service["volumes"] == [{"type": "bind", "source": ".", "target": "/workspace", "read_only": False}]
    dockerfile = service["build"]["dockerfile_inline"]
    assert "torch==2.13.0" in dockerfile and "--mount" not in dockerfile
    assert "image" not in service and "pull_policy" not in service
    assert service["environment"]["PYTHONPATH"] == "/workspace"
    assert service["command"][-1] == "a $$HOME 'b'"


def test_a_machine_with_other_gpus_gives_none_of_them(tmp_path: Path) -> None:
    plan = planned(tmp_path, here=2, target="a100")
    assert plan.gpus == () and plan.container is not None and plan.container.gpus_flag == "1"
    assert plan.driver_version is None


def test_a_run_for_a_gpu_is_no_cpu_run(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    with pytest.raises(GpuContractError, match="built for h100, and this machine has no NVIDIA GPU"):
        refuse_without_gpu(a_job(tmp_path / "project"), host)
    refuse_without_gpu(a_job(tmp_path / "project", "none"), host)
    refuse_without_gpu(a_job(tmp_path / "project"), a_host(tmp_path, GPUS))
