"""Variables that tutorials call limits of GPU memory: a plan says what they do, wherever they are set."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning_sites import READY, a_site
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice
from seatrial.job.script import script_facts
from seatrial.planning.plan import make_plan

ALLOCATOR, GROWTH = "PYTORCH_CUDA_ALLOC_CONF", "TF_FORCE_GPU_ALLOW_GROWTH"


def choices(tmp_path: Path, source: str = "", **env: str) -> dict[str, Choice]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(source)
    target = Target(kind="script", value="train.py")
    job = Job(project=project, target=target, image=ImageOptions(ready=READY), env=env)
    plan = make_plan(job, a_site("docker", tmp_path, project), script_facts(target, project))
    return {choice.what: choice for choice in plan.choices}


@pytest.mark.parametrize(
    ("name", "value", "does"),
    [
        (ALLOCATOR, "max_split_size_mb:4096", "does not split larger free blocks"),
        ("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.6,max_split_size_mb:512", "does not split"),
        (GROWTH, "true", "takes memory as it needs it"),
    ],
)
def test_setting_of_the_job_is_explained(tmp_path: Path, name: str, value: str, does: str) -> None:
    choice = choices(tmp_path, **{name: value})[name]
    assert choice.value == value and "no memory limit" in choice.reason and does in choice.reason
    assert "--gpu-memory SIZE" in choice.reason


def test_setting_of_the_script_is_explained_with_its_place(tmp_path: Path) -> None:
    source = "import os\nimport torch\n\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:512'\n"
    choice = choices(tmp_path, source)[ALLOCATOR]
    assert choice.value == "max_split_size_mb:512" and "(train.py:4)" in choice.reason
