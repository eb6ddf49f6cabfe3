"""A trial's image: its build is shown as a run's is, and ends with the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.errors import ImageError
from seatrial.images.build.progress import CACHED, READY
from seatrial.job.model import Job, Target
from seatrial.search import runner
from seatrial.search.search import Note, Search
from seatrial.search.space import parse_space
from seatrial.search.study import Definition, Study
from seatrial.system.host import Host

STEP = "[build 4/7] RUN pip install --require-hashes -r requirements.txt"


@pytest.fixture
def search(tmp_path: Path) -> Search:
    study = Study.create(tmp_path / "study.sqlite", Definition("s", "t", ("lr=1",), "grid", None))
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    notes: list[str] = []
    return Search(study, parse_space(["lr=1"]), None, job, Host(), notes.append)


def started(monkeypatch: pytest.MonkeyPatch, search: Search, build: Callable[[Callable[[str], None]], None]) -> bool:
    """Start a trial's run whose build is ``build``."""
    monkeypatch.setattr(runner.launch, "start", lambda prepared, environ, progress: build(progress))
    return runner.start_run(search, SimpleNamespace())  # type: ignore[arg-type]


def test_the_build_is_shown_where_the_command_line_shows_builds(
    monkeypatch: pytest.MonkeyPatch, search: Search
) -> None:
    shown: list[str] = []

    @contextmanager
    def building() -> Iterator[Callable[[str], None]]:
        shown.append("begins")
        yield shown.append
        shown.append("ends")

    def build(progress: Callable[[str], None]) -> None:
        for line in (STEP, READY, CACHED):
            progress(line)

    search.building = building
    assert started(monkeypatch, search, build)
    assert shown == ["begins", STEP, READY, "ends"], "that an image is there still is no news"


def test_without_one_its_steps_are_reported(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    notes: list[str] = []
    search.note = notes.append
    assert started(monkeypatch, search, lambda progress: progress(STEP))
    assert notes == ["installing the packages with pip"]


def test_a_search_that_is_over_ends_its_build_at_the_next_line(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    def build(progress: Callable[[str], None]) -> None:
        search.over.set()
        progress(STEP)
        raise AssertionError("it went on")

    assert not started(monkeypatch, search, build)


def test_ctrl_c_that_reaches_the_builder_first_is_no_failure(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    def build(progress: Callable[[str], None]) -> None:
        search.over.set()
        raise ImageError("interrupted")

    assert not started(monkeypatch, search, build)


def test_a_build_that_fails_by_itself_is_one(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    def build(progress: Callable[[str], None]) -> None:
        raise ImageError("no such package")

    monkeypatch.setattr(runner, "_INTERRUPT_S", 0.01)
    with pytest.raises(ImageError):
        started(monkeypatch, search, build)


def test_a_pull_ends_with_the_search_as_well(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    notes: list[str] = []
    search.note = notes.append
    (search.job.project / "train.py").write_text('import argparse\nargparse.ArgumentParser().add_argument("--lr")\n')

    def pulled(job: Job, environ: object, *, building: Callable[[], AbstractContextManager[Note]]) -> None:
        with building() as tell:
            tell("pulling registry.test/train:1")
            search.over.set()
            tell("1: Pulling from train")
            raise AssertionError("it went on")

    monkeypatch.setattr(runner.launch, "prepare", pulled)
    trial = search.ask()
    assert trial is not None and runner.start_trial(search, trial) is None
    assert notes == ["pulling registry.test/train:1"]
    assert search.problem is None and [one.state for one in search.study.trials()] == ["waiting"]
