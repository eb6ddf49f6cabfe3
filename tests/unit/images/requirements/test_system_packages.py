"""Debian packages that wheels need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.findings.match import match_text
from seatrial.images.plan import plan_image
from seatrial.images.requirements.adjust import system_packages
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.script import ScriptFacts
from tables import cases


def test_by_the_packages_that_are_listed() -> None:
    lines = ("opencv-python>=4.1", "opencv-python-headless", "Ultralytics==8.3", "torch", "https://x.test/a.whl")
    assert system_packages(lines) == dict.fromkeys(("opencv-python", "ultralytics"), ("libgl1", "libglib2.0-0"))


def planned(folder: Path, lines: str, **image: Any) -> tuple[str, list[str], tuple[str, ...]]:
    (folder / "requirements.txt").write_text(lines)
    job = Job(project=folder, target=Target(kind="script", value="train.py"), image=ImageOptions(**image))
    plan, choices = plan_image(job, script=ScriptFacts(), cpu_only=True)
    return plan.dockerfile or "", [each.value for each in choices if each.what == "system packages"], plan.warnings


def test_they_are_installed_and_named(tmp_path: Path) -> None:
    dockerfile, reported, _ = planned(tmp_path, "opencv-python\nlightgbm\n")
    assert reported == ["libgl1, libglib2.0-0, libgomp1"]
    assert "--no-install-recommends libgl1 libglib2.0-0 libgomp1" in dockerfile


def test_a_base_of_the_users_own_may_be_no_debian(tmp_path: Path) -> None:
    dockerfile, reported, [warning] = planned(tmp_path, "opencv-python\n", base="rockylinux:9")
    assert reported == [] and "apt-get" not in dockerfile
    assert 'system_packages = ["libgl1", "libglib2.0-0"]' in warning


def test_what_the_user_lists_is_not_named_again(tmp_path: Path) -> None:
    assert planned(tmp_path, "lightgbm\n", system_packages=("libgomp1",))[1] == []


@cases("line", "fix")
def test_what_is_missing_all_the_same_has_a_finding(line: str, fix: str) -> None:
    [finding] = match_text(line)
    assert finding.fix == f"in seatrial.toml: [image] system_packages = {fix}"


def test_a_missing_file_is_no_missing_program() -> None:
    assert match_text("FileNotFoundError: [Errno 2] No such file or directory: 'git/data.csv'") == []
