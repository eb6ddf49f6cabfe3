"""What a program printed, explained by what the run knows of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.findings.match import match_text
from seatrial.job.model import Job, Target
from seatrial.job.plan import Plan
from seatrial.job.serving import Serving
from seatrial.receipt.judging.of_this_run import of_this_run

NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
SAVED_ON_A_GPU = (
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you"
)


def _plan(project: Path, *arguments: str, gpu_mode: str = "none") -> Plan:
    plan = a_plan(job=Job(project=project, target=Target(kind="script", value="a b.py", args=arguments)))
    return plan.model_copy(update={"agent": plan.agent.model_copy(update={"gpu_mode": gpu_mode})})


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
    known = of_this_run(finding, _plan(tmp_path, gpu_mode=gpu_mode))
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
    assert of_this_run(finding, _plan(tmp_path, *given)).fix.startswith(f"seatrial run 'a b.py' {fix}")


def test_a_servers_arguments_are_not_guessed(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    serve = Serving(kind="recipe", model="digits", name="digits", typed="digits")
    served = plan.model_copy(update={"job": plan.job.model_copy(update={"serve": serve})})
    [finding] = match_text("t.py: error: the following arguments are required: --lr")
    assert of_this_run(finding, served) == finding
