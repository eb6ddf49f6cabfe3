"""A finding's fix names the command that was typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.findings.finding import Finding
from seatrial.job.model import Job, Target
from seatrial.receipt.judging.pasteable import pasteable


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
