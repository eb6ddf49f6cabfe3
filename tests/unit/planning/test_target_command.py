"""The target's command line, and where it runs."""

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.planning.site import local_places, target_argv

SCRIPT = Target(kind="script", value="code/train.py", args=("--epochs", "5"))


def test_a_local_working_directory_counts_from_the_project(tmp_path):
    (tmp_path / "code").mkdir()
    job = Job(project=tmp_path, target=SCRIPT, workdir="code")
    places = local_places(job, tmp_path / "run", None)
    assert places.project == str(tmp_path / "code")
    assert target_argv(SCRIPT, None, "python3", places)[0][1] == str(tmp_path / "code" / "train.py")
    with pytest.raises(UsageError, match="there is no folder") as raised:
        local_places(job.model_copy(update={"workdir": "nowhere"}), tmp_path / "run", None)
    assert raised.value.run == f"ls {tmp_path}"
