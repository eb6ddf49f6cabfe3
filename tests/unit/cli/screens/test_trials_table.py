"""The table of a sweep on terminals of different widths, and without one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from seatrial.cli.trials import print_table
from seatrial.search.request import parse_objective
from seatrial.search.trial import Ending, Trial

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
    console = Console(
        file=written, width=width, force_terminal=width is not None, color_system=None, highlight=False, _environ={}
    )
    print_table(trials, parse_objective("accuracy:max"), console)
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
    assert lines[-2:] == [
        "no room here for seconds, images/s, GPU %, energy J, test_loss, loss: see the",
        "page, or --json",
    ]
    assert printed(MANY, 80)[0].split() == ["trial", "settings", "accuracy", "seconds", "images/s", "outcome"]


def test_without_a_terminal_nothing_is_left_out_and_a_trial_is_a_line() -> None:
    lines = printed(MANY, None)
    assert len(lines) == 3 and lines[0].split()[-2:] == ["loss", "outcome"]
    assert lines[2].endswith("out of memory: the GPU had no room for 12 GB more")


def test_a_study_without_trials_has_no_table() -> None:
    written = io.StringIO()
    print_table([], None, Console(file=written))
    assert written.getvalue() == ""
