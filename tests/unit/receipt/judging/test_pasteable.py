"""A finding's fix names the command that was typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.findings.finding import Finding
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job, Target
from seatrial.job.tables import Tuning
from seatrial.receipt.sections.findings import _run_again as run_again
from seatrial.receipt.sections.findings import pasteable


@pytest.mark.parametrize(
    ("typed", "fix", "known"),
    [
        ("tune net.py", "…; seatrial run --gpus 1 …", "seatrial tune --gpus 1 net.py"),
        ("tune net.py -- --epochs 2", "seatrial run --gpus 1 --shm 8GB …", "seatrial tune --gpus 1 --shm 8GB net.py"),
        ("export last --to onnx", "seatrial run …", "seatrial export last --to onnx"),
        ("", "seatrial run --gpus 1 …", "seatrial run --gpus 1 net.py"),
    ],
)
def test_the_verb_of_a_run_that_was_typed_as_another(tmp_path: Path, typed: str, fix: str, known: str) -> None:
    target = Target(kind="script", value="net.py", typed=typed)
    plan = a_plan(job=Job(project=tmp_path, target=target))
    if typed:
        assert shlex.split(plan.target_line)[0] == typed.partition(" ")[0], "or this tests nothing"
    made = pasteable(Finding("some", "error", "m", fix=fix), plan).fix
    assert made is not None and known in made and "run tune" not in made


@pytest.mark.parametrize(
    ("fix", "made"),
    [
        ("seatrial run --memory 8GB …", "seatrial run --memory 8GB net.py --on podman --gpus device=1 -- --lr 1"),
        ("seatrial run --gpus none …", "seatrial run --gpus none net.py --on podman -- --lr 1"),
        ("seatrial run … --on docker   # or", "seatrial run net.py --gpus device=1 --on docker -- --lr 1   # or"),
        ("seatrial plan … --gpus 2", "seatrial plan net.py --on podman --gpus 2 -- --lr 1"),
        ("seatrial run … -- --help", "seatrial run net.py --on podman --gpus device=1 -- --help"),
        ("seatrial runs logs RUN", "seatrial runs logs 20261120-000000-test"),
    ],
)
def test_the_place_and_the_gpus_are_those_of_the_run(tmp_path: Path, fix: str, made: str) -> None:
    """Not its variables: a receipt is passed on, and their values may be private."""
    asked = {"backend": "podman", "gpus": GpuRequest.parse("device=1"), "env": {"TOKEN": "private"}}
    target = Target(kind="script", value="net.py", args=("--lr", "1"))
    plan = a_plan(job=Job(project=tmp_path, target=target, **asked))
    assert pasteable(Finding("some", "error", "m", fix=fix), plan).fix == made


def test_a_verb_with_its_own_options_gets_none_twice(tmp_path: Path) -> None:
    target = Target(kind="recipe", value="export", typed="export last --on local")
    plan = a_plan(job=Job(project=tmp_path, target=target, backend="local", gpus=GpuRequest.parse("none")))
    assert run_again(plan) == (["export", "last", "--on", "local"], [])
    tuned = Job(project=tmp_path, target=Target(kind="script", value="net.py"), backend="local", tuning=Tuning())
    assert run_again(a_plan(job=tuned)) == (["tune", "net.py", "--on", "local"], [])
