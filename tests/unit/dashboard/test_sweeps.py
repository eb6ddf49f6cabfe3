"""Sweeps on the dashboard: how each stands, and a page whose links lead to the runs' views."""

import os
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")

from seatrial.dashboard.projects import Projects
from seatrial.dashboard.sweeps import sweep_page, sweeps
from seatrial.errors import RunNotFoundError
from seatrial.job.model import Job, Target
from seatrial.runs.store import RunStore
from seatrial.search.study import FILE, Definition, Study
from seatrial.search.trial import Ending
from seatrial.system.names import Names


@pytest.fixture
def projects(tmp_path: Path) -> Projects:
    """A project with a study of two trials, and beside it a file that is none."""
    store = RunStore(tmp_path / "project", {"SEATRIAL_STATE": str(tmp_path / "state")})
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    job = Job(project=store.project, target=Target(kind="script", value="train.py")).model_dump_json()
    folder = store.record / "sweeps" / "s"
    folder.mkdir(parents=True)
    definition = Definition("s", "<i>train.py</i>", ("lr=0.1,0.2",), "grid", "loss:min", trials=2, job=job)
    study = Study.create(folder / FILE, definition)
    for number, value in enumerate((0.5, 0.25)):
        study.ask()
        study.begin(number, f"20261122-00000{number}-test")
        study.tell(number, Ending("done", value, "passed", 0, {"seconds": 2.0}, {"loss": value}))
    study.put("ended", "complete")
    study.leave()
    (store.record / "sweeps" / "broken").mkdir()
    (store.record / "sweeps" / "broken" / FILE).write_bytes(b"")
    return Projects(store)


def test_a_line_a_sweep(projects: Projects) -> None:
    (line,) = sweeps(projects)
    assert line["name"] == "s" and line["title"] == "<i>train.py</i>" and line["best"] == "loss 0.25"
    assert line["chip"]["words"] == "✓ done" and "2 of 2 trials" in line["standing"]


def test_the_page_leads_to_the_dashboards_views_and_runs_nothing(projects: Projects) -> None:
    ((key, _),) = projects.all().items()
    page = sweep_page(projects, key, "s", {}, Names())
    assert '<a href="/#/runs/20261122-000001-test" target="_top">' in page and "receipt.html" not in page
    assert "<script" not in page and "<i>train" not in page and "&lt;i&gt;train" in page
    assert page.index("20261122-000001-test") < page.index("20261122-000000-test")  # the winner is first


@pytest.mark.parametrize(("key", "name"), [("other", "s"), (None, "none"), (None, "../s")])
def test_no_other_file_can_be_had(projects: Projects, key: str | None, name: str) -> None:
    known = next(iter(projects.all()))
    with pytest.raises(RunNotFoundError):
        sweep_page(projects, key or known, name, {}, Names())


def test_a_sweep_that_was_killed_does_not_run_for_ever(projects: Projects) -> None:
    ((key, store),) = projects.all().items()
    study = Study(store.record / "sweeps" / "s" / FILE)
    study.put("ended", None)
    study.ask(settings={"lr": "0.2"})
    assert [line["chip"]["words"] for line in sweeps(projects)] == ["● running"]
    assert "sweep --resume" not in sweep_page(projects, key, "s", {}, Names())
    study.path.write_bytes(
        study.path.read_bytes().replace(b"%d/" % os.getpid(), b"%d/" % (2**22 + 1))
    )  # one that is gone
    (line,) = sweeps(projects)
    assert line["chip"]["words"] == "! stopped" and "1 not followed" in line["standing"]
    page = sweep_page(projects, key, "s", {}, Names())
    assert "seatrial sweep --resume s" in page and "● running" not in page
