"""The project that a folder belongs to, and the line of a live run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.cli.job import read_job
from seatrial.events import EvidenceLog, TargetStarted
from seatrial.job.model import Job, Target
from seatrial.runs.status import line_of
from seatrial.runs.store import RunStore, nearest_store, store_of
from seatrial.system.host import Host

RUN = "20261120-120000-kkkk"


@pytest.fixture
def project(store: RunStore) -> Path:
    (store.project / "src" / "deep").mkdir(parents=True)
    store.create(RUN, "mine")
    return store.project


@pytest.mark.parametrize("below", [".", "src", "src/deep"])
def test_from_every_folder_of_a_project(project: Path, environ: dict[str, str], below: str) -> None:
    assert nearest_store(project / below, Host(environ)).find("mine").id == RUN


@pytest.mark.parametrize("marker", ["seatrial.toml", ".git"])
def test_a_project_inside_another_has_its_own(project: Path, environ: dict[str, str], marker: str) -> None:
    (project / "src" / marker).write_text("")
    assert nearest_store(project / "src" / "deep", Host(environ)).project == project / "src"
    (project / marker).write_text("")
    assert nearest_store(project, Host(environ)).all()


def test_a_model_is_looked_for_where_the_runs_are(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.parent / ".git").mkdir()  # only -C makes the folder a project
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)
    assert project == read_job(["predict"], {}, arguments=["digits"]).project
    assert read_job(["digits"], {}, arguments=[]).project == project.parent
    named = read_job(["predict"], {"project": project / "src"}, arguments=["digits"]).project
    assert named == project / "src"


def test_a_folder_that_is_named_is_intended(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "src")
    assert store_of(None, Host(environ)).all()
    assert not store_of(project / "src", Host(environ)).all() and not store_of(Path(), Host(environ)).all()
    assert store_of(None, Host(environ)).option == ""
    assert store_of(project / "src", Host(environ)).option == f" -C {project / 'src'}"


def test_a_live_run_shows_its_arguments_and_how_long_it_runs(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seatrial.runs.status.finalise", lambda run, environ: None)  # the run is live
    run = RunStore(project, Host(environ)).run(RUN)
    target = Target(kind="script", value="a b.py", args=("--lr", "0.1"))
    run.save_plan(a_plan(job=Job(project=project, target=target), backend="local", image=None, container=None))
    [line] = [line_of(run, Host(environ)) for run in RunStore(project, Host(environ)).all()]
    assert (line.target, line.seconds, line.status) == ("'a b.py' -- --lr 0.1", None, "starting")
    with EvidenceLog(str(run.events_path), "agent") as log:
        log.write(TargetStarted(pid=1, argv=["python3"], launcher="none", framework=None))
        log.append([{"t": time.time() - 90, "type": "target.started", "source": "agent"}])
    [line] = [line_of(run, Host(environ)) for run in RunStore(project, Host(environ)).all()]
    assert line.seconds is not None and line.seconds < 90
