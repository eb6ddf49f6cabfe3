"""The table of a sweep on terminals of different widths, and without one."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from seatrial.cli import screen
from seatrial.cli.screen import SearchScreen
from seatrial.cli.tables import print_trials
from seatrial.job.model import Job, Target
from seatrial.search.request import Definition, parse_objective
from seatrial.search.search import Search
from seatrial.search.space import parse_space
from seatrial.search.study import Study
from seatrial.search.trial import Ending, Trial
from seatrial.system.host import Host

FEW = {"learning_rate": "0.001", "batch_size": "128", "mixed_precision": "true"}
MANY = {**FEW, "weight_decay": "0.01", "warmup_epochs": "5", "label_smoothing": "0.1"}


def printed(settings: dict[str, str], width: int | None) -> list[str]:
    """The lines of a study of two trials, one of which has failed. ``width``: of the terminal; None: there is none."""
    measured = {"seconds": 12.3, "images_per_s": 123456.7, "utilization_pct": 92.1, "energy_j": 5432.1}
    metrics = {"loss": 0.125, "accuracy": 0.98, "test_loss": 0.25}
    good = Ending("done", 0.98, "done on the GPU", 0, measured, metrics)
    bad = Ending("failed", None, "out of memory: the GPU had no room for 12 GB more", 1, measured)
    trials = [Trial(0, settings, "done", ending=good), Trial(1, settings, "failed", ending=bad)]
    written = io.StringIO()
    plain = {"color_system": None, "highlight": False, "_environ": {}}
    console = Console(file=written, width=width, force_terminal=width is not None, **plain)
    print_trials(trials, parse_objective("accuracy:max"), console)
    return [line.rstrip() for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("settings", [FEW, MANY])
@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_no_title_and_no_value_is_broken_and_what_is_left_out_is_named(settings: dict[str, str], width: int) -> None:
    lines = printed(settings, width)
    assert max(map(len, lines)) <= width
    words = [word.rstrip(",:") for word in " ".join(lines).split()]
    for title in ("trial", "accuracy", "seconds", "images/s", "energy", "loss", "test_loss", "outcome"):
        assert title in words, "a column, or named below"
    for name, value in settings.items():
        assert (name in words and value in words) or f"{name}={value}" in words
    assert "0.98" in words and "memory" in words
    assert ("--json" in words) is (width < 200)


def test_80_columns_have_settings_in_their_own_columns_where_they_fit() -> None:
    lines = printed(FEW, 80)
    assert lines[0] == "trial  learning_rate  batch_size  mixed_precision  accuracy  outcome"
    assert lines[1] == "0      0.001          128         true             0.98      done on the GPU"
    left_out = "too narrow for seconds, images/s, GPU %, energy J, test_loss, loss: see the page, or --json"
    assert " ".join(lines[-2:]) == left_out
    assert printed(MANY, 80)[0].split() == ["trial", "settings", "accuracy", "seconds", "images/s", "outcome"]


def test_metric_that_the_script_prints_in_percent_keeps_its_sign() -> None:
    ending = Ending("done", 62.0, metrics={"val_accuracy": 62.0, "loss": 0.5}, percent=["val_accuracy"])
    written = io.StringIO()
    print_trials([Trial(0, {"lr": "1"}, "done", ending=ending)], parse_objective("accuracy:max"), Console(file=written))
    assert written.getvalue().splitlines()[0].rstrip() == "trial  lr  accuracy %  val_accuracy %  loss  outcome"


def test_without_a_terminal_nothing_is_left_out_and_a_trial_is_a_line() -> None:
    lines = printed(MANY, None)
    assert len(lines) == 3 and lines[0].split()[-2:] == ["loss", "outcome"]
    assert lines[2].endswith("out of memory: the GPU had no room for 12 GB more")


def test_a_study_without_trials_has_no_table() -> None:
    written = io.StringIO()
    print_trials([], None, Console(file=written))
    assert written.getvalue() == ""


# --------------------------------------------------- the line below a sweep


@pytest.fixture
def search(tmp_path: Path) -> Search:
    (tmp_path / "s").mkdir()
    study = Study.create(tmp_path / "s" / "study.journal", Definition("s", "t", ("lr=1,2",), "grid", None))
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    return Search(study, parse_space(["lr=1,2"]), None, job, Host({}), lambda line: None)


def shown(search: Search, screen: SearchScreen, began_s: float = 0.0) -> list[str]:
    """Return the trial's line ``began_s`` after its start."""
    texts: list[str] = []
    line = SimpleNamespace(changes=True, show=texts.append, clear=lambda: None)
    screen._standing = screen._live = line  # type: ignore[assignment]
    screen._began_s = time.monotonic() - began_s
    screen.show(search)
    return texts


def test_it_prints_how_long_once_that_is_worth_a_word(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_LOOK_EVERY_S", 0.0)
    assert shown(search, SearchScreen()) == ["0 of 2 trials"]
    assert shown(search, SearchScreen(), 3725) == ["1 h 2 min: 0 of 2 trials"]


def test_nothing_while_an_image_is_built_nor_where_quiet_is_requested_for(search: Search) -> None:
    screen = SearchScreen()
    screen.builds = True
    assert shown(search, screen) == [] and shown(search, SearchScreen(quiet=True)) == []


def test_quiet_keeps_warnings_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    screen, loud = SearchScreen(quiet=True), ["warning: no room", "train: failed: ValueError", "train: warning: old"]
    for line in ("study s: grid search", *loud, "x: y"):
        screen.note(line)
    assert capsys.readouterr().err.splitlines() == [f"seatrial {line}" for line in loud]
