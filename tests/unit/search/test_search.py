"""Joining a study: it is searched again, and reports so, however it ended before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.cli import sweep
from seatrial.cli.screen import SearchScreen
from seatrial.errors import EngineUnavailableError
from seatrial.job.model import Job, Target
from seatrial.job.tables import SweepTable
from seatrial.runs.store import RunStore
from seatrial.search.request import define
from seatrial.search.search import PLACE_FOLDER, Search, find_study, open_search
from seatrial.search.trial import Ending
from seatrial.system.host import Host


def _open(folder: Path, *, name: str | None, trials: int = 2) -> Search:
    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text('"--lr"')
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    definition = define(SweepTable(trials=trials), ["lr=1,2,3,4"], name)
    return open_search(definition, job, Host({"SEATRIAL_STATE": str(folder / "state")}), lambda line: None)


def _try(search: Search, trials: int) -> None:
    for _ in range(trials):
        trial = search.ask()
        assert trial is not None
        search.study.tell(trial.number, Ending("done"))


def test_a_finished_study_that_is_joined_runs_and_is_stopped_where_it_is_left_half_way(tmp_path: Path) -> None:
    first = _open(tmp_path, name="s")
    _try(first, 2)
    first.finish()
    assert first.study.standing() == "done"
    again = _open(tmp_path, name="s", trials=4)
    assert again.study.standing() == "stopped"
    _try(again, 1)
    assert again.study.standing() == "running"
    again.study.leave()  # as one that was killed
    assert again.study.standing() == "stopped"


def test_last_is_the_study_that_was_used_last(tmp_path: Path) -> None:
    older, newer = (_open(tmp_path, name=name).study for name in ("z", "a"))
    store = RunStore(tmp_path / "project", Host({"SEATRIAL_STATE": str(tmp_path / "state")}))
    os.utime(older.path, (1, 1))
    assert find_study(store, "last").path == newer.path
    os.utime(newer.path, (0, 0))
    assert find_study(store, "last").path == older.path


def test_a_problem_of_the_searcher_does_not_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = _open(tmp_path, name=None)

    def no_cluster(search: Search) -> None:
        _try(search, 1)
        raise EngineUnavailableError("There is no Ray cluster", run="ray start --head")

    monkeypatch.setattr("seatrial.search.runner.run_trials", no_cluster)
    with pytest.raises(EngineUnavailableError):
        sweep._run_search(search, "local", SearchScreen(), as_json=False)
    name = search.study.definition.name
    assert f"go on: seatrial sweep --resume {name}" in " ".join(capsys.readouterr().err.split())
    assert search.study.standing() == "failed"
    page = search.job.project.joinpath(*PLACE_FOLDER, name, "index.html").read_text()
    assert "There is no Ray cluster" in page and f"seatrial sweep --resume {name}" in page

    again = _open(tmp_path, name=None)
    assert again.study.definition.name == name and len(again.study.trials()) == 1
    assert again.study.standing() == "stopped" and again.study.get("problem") is None
