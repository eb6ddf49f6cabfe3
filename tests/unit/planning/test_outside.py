"""Paths that a script names and the container would not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seatrial.job.model import DataMount, Job, Target
from seatrial.job.mount import Mount
from seatrial.job.script import script_facts
from seatrial.planning.container import outside
from seatrial.planning.container.outside import warn_of_outside

TARGET = Target(kind="script", value="code/train.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("project/code", "project/inside", "data", "models v2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "x.csv").touch()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "x").touch()
    (tmp_path / "project" / "inside" / "x").touch()
    return tmp_path / "project"


def warnings(project: Path, source: str, **job: Any) -> list[str]:
    (project / "code" / "train.py").write_text(source)
    made = Job(project=project, target=TARGET, **job)
    return list(warn_of_outside(made, script_facts(TARGET, project)))


def test_a_neighbour_of_the_project(project: Path) -> None:
    [told] = warnings(project, "open('../data/x.csv')\nopen('../data/y.csv')\n")
    assert told.startswith("code/train.py:1 names ../data/x.csv") and told.endswith("--mount ../data:/data")
    [told] = warnings(project, "import os\nmodel = os.path.join('../models v2', 'a.pt')\n")
    assert told.endswith("--mount '../models v2:/models v2'")


def test_an_absolute_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = project.parent / "data"
    monkeypatch.setattr(outside, "_IN_IMAGES", (str(data.parent / "inside"),))  # a test's folder may be under /tmp
    [told] = warnings(project, f"open('{data}/x.csv')\nopen('{data.parent}/inside/x')\n")
    assert told.endswith(f"--mount {data}/x.csv:{data}/x.csv")


def test_what_lies_in_a_folder_that_is_told_of_comes_with_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_IN_IMAGES", ())
    data = project.parent / "data"
    [told] = warnings(project, f"open('{data}/x.csv')\nopen('{data}')\n")
    assert told.startswith(f"code/train.py:2 names {data}, ") and told.endswith(f"--mount {data}:{data}")


@pytest.mark.parametrize(
    "source",
    [
        "open('../inside/x')",  # from the script's own folder it is in the project
        "open('../missing/x')",
        "open('/etc/hostname')",
        "open('/usr/bin/env')",
        "open('data/x')",
        "'''../data: what the docs call it,\nin two lines'''",
    ],
)
def test_nothing_is_missing(project: Path, source: str) -> None:
    assert warnings(project, source) == []


def test_what_is_mounted_is_there(project: Path) -> None:
    source = "open('../data/x.csv')"
    folder = project.parent / "data"
    assert warnings(project, source, data=DataMount(source=folder, read_only=True)) == []
    assert warnings(project, source, mounts=(Mount(source=folder, target="/data"),)) == []
    assert warnings(project, source, workdir="/workspace/code") == []
