"""The line below a sweep: how long it has run and how it stands, and nothing where a build has that line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seatrial.cli import trials as screens
from seatrial.cli.trials import SearchScreen
from seatrial.job.model import Job, Target
from seatrial.search.request import Definition
from seatrial.search.search import Search
from seatrial.search.space import parse_space
from seatrial.search.study import Study
from seatrial.system.host import Host


class Line:
    """A terminal's line."""

    changes = True

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, text: str) -> str | None:
        self.shown.append(text)
        return None

    def clear(self) -> None:
        """It was never drawn."""


@pytest.fixture
def search(tmp_path: Path) -> Search:
    (tmp_path / "s").mkdir()
    study = Study.create(tmp_path / "s" / "study.journal", Definition("s", "t", ("lr=1,2",), "grid", None))
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    return Search(study, parse_space(["lr=1,2"]), None, job, Host({}), lambda line: None)


def shown(search: Search, screen: SearchScreen, began_s: float = 0.0) -> list[str]:
    """Return the trial's line ``began_s`` after its start."""
    line = Line()
    screen._standing = screen._live = line  # type: ignore[assignment]
    screen._began_s = time.monotonic() - began_s
    screen.show(search)
    return line.shown


def test_it_prints_how_long_once_that_is_worth_a_word(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "_LOOK_EVERY_S", 0.0)
    assert shown(search, SearchScreen()) == ["0 of 2 trials"]
    assert shown(search, SearchScreen(), 3725) == ["1 h 2 min: 0 of 2 trials"]


def test_nothing_while_an_image_is_built_nor_where_quiet_is_requested_for(search: Search) -> None:
    screen = SearchScreen()
    screen.builds = True
    assert shown(search, screen) == [] and shown(search, SearchScreen(quiet=True)) == []


def test_quiet_keeps_warnings_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    screen = SearchScreen(quiet=True)
    for line in (
        "study s: grid search",
        "warning: no room",
        "train: failed: ValueError",
        "train: warning: old",
        "x: y",
    ):
        screen.note(line)
    result = capsys.readouterr().err.splitlines()
    assert result == ["seatrial warning: no room", "seatrial train: failed: ValueError", "seatrial train: warning: old"]
