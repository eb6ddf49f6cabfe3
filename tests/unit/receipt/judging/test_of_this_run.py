"""What a program printed, explained by what the run knows of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fakes import a_plan
from seatrial.findings.match import match_text
from seatrial.job.model import Job, Target
from seatrial.job.plan import Plan
from seatrial.job.tables import Serving
from seatrial.receipt.evidence import RunEvidence
from seatrial.receipt.sections.findings import _of_this_run as of_this_run

NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
SAVED_ON_A_GPU = (
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you"
)


def _run(plan: Plan) -> RunEvidence:
    project = str(plan.job.project) if plan.on_the_host else "/workspace"
    return cast(RunEvidence, SimpleNamespace(plan=plan, project=project))


def _plan(project: Path, *arguments: str, gpu_mode: str = "none") -> Plan:
    plan = a_plan(job=Job(project=project, target=Target(kind="script", value="a b.py", args=arguments)))
    return plan.model_copy(update={"agent": plan.agent._replace(gpu_mode=gpu_mode)})


@pytest.mark.parametrize(
    ("said", "gpu_mode", "id", "fix"),
    [
        (NO_CUDA, "none", "gpu-taken-for-granted", "torch.cuda.is_available()"),
        (NO_CUDA, "auto-cpu", "gpu-taken-for-granted", "torch.cuda.is_available()"),
        (NO_CUDA, "required", "torch-cpu-only", "pip install"),
        (SAVED_ON_A_GPU, "none", "checkpoint-of-a-gpu", 'map_location="cpu"'),
        (SAVED_ON_A_GPU, "required", "checkpoint-of-a-gpu", "--gpus 1"),
    ],
)
def test_a_run_on_the_cpu_blames_no_installed_torch(
    tmp_path: Path, said: str, gpu_mode: str, id: str, fix: str
) -> None:
    [finding] = match_text(said)
    known = of_this_run(finding, _run(_plan(tmp_path, gpu_mode=gpu_mode)))
    assert known.id == id and fix in known.fix and known.evidence == finding.evidence


@pytest.mark.parametrize(
    ("said", "given", "fix"),
    [
        ("t.py: error: the following arguments are required: --lr", (), "-- --lr VALUE "),
        ("t.py: error: the following arguments are required: --lr, --name", (), "-- --lr VALUE --name VALUE "),
        ("t.py: error: the following arguments are required: data, -l/--lr", ("-v",), "-- -v DATA --lr VALUE "),
        ("Error: Missing option '--lr' / '-l'.", (), "-- --lr VALUE "),
        (
            "t.py: error: the following arguments are required: --lr, {train,eval}, mode, --size",
            (),
            "-- --lr VALUE train MODE --size VALUE ",
        ),
    ],
)
def test_each_argument_that_is_missing_has_a_value(tmp_path: Path, said: str, given: tuple[str, ...], fix: str) -> None:
    [finding] = match_text(said)
    assert of_this_run(finding, _run(_plan(tmp_path, *given))).fix.startswith(f"seatrial run 'a b.py' {fix}")


def test_a_servers_arguments_are_not_guessed(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    serve = Serving(kind="recipe", model="digits", name="digits", typed="digits")
    served = plan.model_copy(update={"job": plan.job.model_copy(update={"serve": serve})})
    [finding] = match_text("t.py: error: the following arguments are required: --lr")
    assert of_this_run(finding, _run(served)) == finding


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
    assert said in of_this_run(finding, _run(plan)).fix


def test_what_the_variable_has_already_is_kept(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "net.py").touch()
    target = Target(kind="script", value="train.py")
    plan = a_plan(job=Job(project=tmp_path, target=target, env={"PYTHONPATH": "/workspace/other"}))
    [finding] = match_text("ModuleNotFoundError: No module named 'net'")
    assert '[env] PYTHONPATH = "/workspace/other:/workspace/lib"' in of_this_run(finding, _run(plan)).fix


def test_nccl_without_a_gpu_names_the_launcher() -> None:
    [finding] = match_text("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    assert "--launcher none" in finding.fix
