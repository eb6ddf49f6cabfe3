"""The target's command line, and where it runs."""

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.planning.site import container_places, local_places, target_argv

SCRIPT = Target(kind="script", value="code/train.py", args=("--epochs", "5"))


def test_a_script_is_relative_to_the_project_which_is_the_working_directory():
    places = container_places(Job(project=Path("/home/me/project"), target=SCRIPT), resumes=False)
    assert places.project == "/workspace"
    assert target_argv(SCRIPT, None, "python3", places) == (["python3", "code/train.py", "--epochs", "5"], 1)


def test_another_working_directory_does_not_lose_the_script():
    places = container_places(Job(project=Path("/home/me/project"), target=SCRIPT, workdir="/data"), resumes=False)
    assert places.project == "/data"
    assert target_argv(SCRIPT, None, "python3", places)[0][1] == "/workspace/code/train.py"


def test_a_local_working_directory_counts_from_the_project(tmp_path):
    (tmp_path / "code").mkdir()
    job = Job(project=tmp_path, target=SCRIPT, workdir="code")
    places = local_places(job, tmp_path / "run", None)
    assert places.project == str(tmp_path / "code")
    assert target_argv(SCRIPT, None, "python3", places)[0][1] == str(tmp_path / "code" / "train.py")
    with pytest.raises(UsageError, match="there is no folder") as raised:
        local_places(job.model_copy(update={"workdir": "nowhere"}), tmp_path / "run", None)
    assert raised.value.run == f"ls {tmp_path}"


def test_checkpoints_to_go_on_from_are_named_only_where_there_are_some():
    job = Job(project=Path("/home/me/project"), target=SCRIPT)
    assert container_places(job, resumes=False).resume is None
    assert container_places(job, resumes=True).resume == "/seatrial/resume/checkpoints"
