"""Mounts for what a target's arguments name on this machine."""

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.planning.container.outside import with_host_paths


def job_of(project: Path, *arguments: str) -> Job:
    return Job(project=project, target=Target(kind="script", value="train.py", args=arguments))


def test_outside_is_read_only_and_inside_is_writable(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    (project / "own").mkdir(parents=True)
    data.mkdir()
    job, choices, warnings = with_host_paths(
        job_of(project, "--data", str(data), "--out", str(project / "own")), build=True
    )
    assert [(mount.target, mount.read_only) for mount in job.mounts] == [
        (str(data), True),
        (str(project / "own"), False),
    ]
    assert [choice.reason for choice in choices] == ["--data names it", "--out names it"]
    assert warnings == ()


def test_a_folder_for_results_outside_is_refused_with_the_option(tmp_path: Path) -> None:
    job = job_of(tmp_path, "--output_dir", "/mnt/results")
    with pytest.raises(UsageError, match="--output_dir /mnt/results is for results") as refusal:
        with_host_paths(job, build=True)
    assert refusal.value.run == "seatrial run … --mount /mnt/results:/mnt/results"
    mounted = job.changed(mounts=({"source": "/mnt", "target": "/mnt/results", "read_only": False},))
    assert with_host_paths(mounted, build=True)[0] == mounted


def test_a_missing_path_is_named_and_paths_of_images_are_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, "--data", "/nowhere/imagenet", "--sh", "/bin/sh", "--out", "/tmp/x", "--d", "/workspace/a")
    same, choices, warnings = with_host_paths(job, build=True)
    assert (same, choices) == (job, ())
    assert warnings == ("--data /nowhere/imagenet: this machine has no such file or folder",)
