"""A module of the project that was not found is not a package to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.findings.match import match_text
from seatrial.job.model import Job, Target
from seatrial.receipt.judging.missing_module import about_the_project


@pytest.mark.parametrize(
    ("file", "module", "said"),
    [
        ("mingpt/__init__.py", "mingpt", '[env] PYTHONPATH = "/workspace"'),
        ("code/model/net.py", "net", '[env] PYTHONPATH = "/workspace/code/model"'),
        ("code/lib/__init__.py", "lib.data", '[env] PYTHONPATH = "/workspace/code"'),
        ("other.py", "einops", "add it to requirements.txt"),
        ("a/b/c/d/e/deep.py", "deep", "add it to requirements.txt"),
        ("torch/_six.py", "torch._six", "pin torch<1.13"),
    ],
)
def test_where_a_module_is(tmp_path: Path, file: str, module: str, said: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    plan = a_plan(job=Job(project=tmp_path, target=Target(kind="script", value="train.py")))
    [finding] = match_text(f"ModuleNotFoundError: No module named '{module}'")
    assert said in about_the_project(finding, plan).fix


def test_what_the_variable_has_already_is_kept(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "net.py").touch()
    target = Target(kind="script", value="train.py")
    plan = a_plan(job=Job(project=tmp_path, target=target, env={"PYTHONPATH": "/workspace/other"}))
    [finding] = match_text("ModuleNotFoundError: No module named 'net'")
    assert '[env] PYTHONPATH = "/workspace/other:/workspace/lib"' in about_the_project(finding, plan).fix


def test_nccl_without_a_gpu_names_the_launcher() -> None:
    [finding] = match_text("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    assert "--launcher none" in finding.fix
