"""What trials report, failures that they share, and how a search stands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seatrial.errors import EXIT_TARGET_FAILED
from seatrial.runs.run import Run
from seatrial.search.metrics import Reading, problem_of, unreported
from seatrial.search.request import Objective
from seatrial.search.results import _cell, best_of, close_second, columns, history, seconds_left, summary_line
from seatrial.search.trial import Ending, State, Trial, TrialReport
from tables import cases


def _trial(number: int, state: State = "done", *, loss: float = 0.5, **settings: str) -> Trial:
    metrics = {"loss": loss, "images_per_s": 100.0 + number} if state == "done" else {}
    ending = Ending(state, value=metrics.get("loss"), outcome="exited with 1: no such data", metrics=metrics)
    chosen = settings or {"lr": str(number)}
    return Trial(number, chosen, state, run_id=f"run-{number}", ending=ending, begun_at=10.0, ended_at=14.0 + number)


def test_five_failures_and_nothing_else_end_it() -> None:
    failed = [_trial(number, "failed") for number in range(5)]
    problem = problem_of(failed)
    assert problem is not None and problem.exit_code == EXIT_TARGET_FAILED and "no such data" in problem.message
    assert problem.run == "seatrial runs show run-4"
    assert problem_of(failed[:4]) is None and problem_of([*failed, _trial(5)]) is None


def test_five_trials_equal_in_all_but_their_speed_end_it() -> None:
    trials = [_trial(number) for number in range(5)]
    problem = problem_of(trials)
    assert problem is not None and problem.run == "seatrial runs compare run-0 run-4"
    assert problem.message == "The setting lr makes no difference: 5 trials reported exactly the same numbers"
    assert problem_of([*trials, _trial(5, loss=0.4)]) is None and problem_of(trials[:4]) is None
    for trial in trials:
        assert trial.ending is not None
        trial.ending.printed.append("loss")
    assert problem_of(trials) is None, "a printed number has few digits"


def test_a_metric_that_nobody_reports_names_those_that_there_are() -> None:
    error = unreported(Objective("los", "min"), _trial(0))
    assert "reported images_per_s, loss" in error.message and error.run == "seatrial sweep … --metric loss:min"
    assert unreported(Objective("los", "max"), _trial(0)).run == "seatrial sweep … --metric loss:min", "less is better"
    scores = Trial(0, {}, "done", run_id="r", ending=Ending("done", metrics={"loss": 1.0, "val_acc": 0.5}))
    assert unreported(Objective("accuracy", "max"), scores).run == "seatrial sweep … --metric val_acc:max", "not loss"
    silent = Trial(0, {}, "failed", run_id="r", ending=Ending("done"))
    assert "no metric at all" in unreported(Objective("loss", "min"), silent).message
    pattern = unreported(Objective("loss", "min", r"loss=(\S+)"), silent, "bye")
    assert r"--metric-from 'loss=(\S+)' matched" in pattern.message, "as it was typed"
    assert pattern.cause == "its last line was: bye" and pattern.run == "seatrial runs logs r"


def test_how_it_stands() -> None:
    objective = Objective("loss", "min")
    trials = [_trial(0, loss=0.5), _trial(1, loss=0.3), _trial(2, "pruned"), _trial(3, "failed")]
    best = best_of(trials, objective)
    assert best is trials[1]
    words = summary_line(trials, objective, 8, 16.0)
    assert words == "4 of 8 trials; best loss 0.3 (lr=1); 1 pruned, 1 failed; about 16 s left"
    assert seconds_left(trials, 8, 2, None) == 11.0 and seconds_left([], 8, 2, None) is None


def _printing(number: int, *values: float) -> Trial:
    reports = tuple(TrialReport(step, value) for step, value in enumerate(values, 1))
    return Trial(number, {"lr": str(number)}, "done", run_id="r", reports=reports, ending=Ending("done", values[-1]))


@pytest.mark.parametrize(
    ("values", "ends"),
    [([(0.5, 0.8)] * 5, True), ([(0.8,)] * 5, False), ([(0.5, 0.8 + number) for number in range(5)], False)],
    ids=["several and equal", "one and equal", "several"],
)
def test_equal_printed_numbers_end_it_where_they_are_more_than_one(values: list[tuple[float, ...]], ends: bool) -> None:
    trials = [_printing(number, *each) for number, each in enumerate(values)]
    assert (problem_of(trials) is not None) is ends


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((0.1, 0.5, 0.80, 0.82, 0.81, 0.83), (0.1, 0.4, 0.81, 0.80, 0.83, 0.82), "differs by -0.02 to 0.0"),
        ((0.1, 0.5, 0.80, 0.82, 0.81, 0.83), (0.1, 0.4, 0.60, 0.61, 0.60, 0.62), None),
        ((0.1, 0.5, 0.80, 0.82, 0.81, 0.83), (0.1, 0.4, 0.81, 0.80, 0.82), None),
        ((0.83,), (0.82,), None),
        ((0.83,), (0.83,), "has the same acc"),
    ],
    ids=["within each other's noise", "clear", "of different length", "a single report", "equal"],
)
def test_a_next_best_trial_that_is_not_distinguishable_is_named(
    first: tuple[float, ...], second: tuple[float, ...], words: str | None
) -> None:
    made = [_printing(0, *second), _printing(1, *first), _printing(2, 0.1)]
    found = close_second(made, Objective("acc", "max"))
    assert (words or "") in (found or "") and (found is None) is (words is None)
    assert ("more seeds" in (found or "")) is ("differs" in (words or ""))
    assert close_second(made, None) is None and close_second(made[:1], Objective("acc", "max")) is None


@cases("first", "second", "best")
def test_without_an_objective_a_trial_is_best_only_where_all_metrics_agree(first, second, best) -> None:
    made = [
        Trial(at, {"lr": str(at)}, "done", ending=Ending("done", metrics=metrics))
        for at, metrics in enumerate((first, second))
    ]
    found = best_of(made, None)
    assert (None if found is None else found.number) == best
    assert ("best in every metric: trial 1 (lr=1)" in summary_line(made, None, 2, None)) is (best is not None)


def test_a_bar_of_a_value_five_percent_worse_is_five_percent_shorter() -> None:
    made = [_trial(0, loss=4.0), _trial(1, loss=4.2)]
    [loss] = [column for column in columns(made, None) if column.title == "loss"]
    assert [_cell(each, made, loss).percent for each in made] == ["100", "95"]
    early = Trial(2, {}, "failed", ending=Ending("failed", metrics={"loss": 1.0}))
    assert _cell(early, made, loss).percent == "0"  # a failed trial has no bar
    lacking = _cell(Trial(2, {}, "failed"), made, loss)
    assert (lacking.text, lacking.best) == ("", False)  # the page's template refuses names that are undefined


def test_an_objective_that_is_printed_under_a_longer_name_is_one_column() -> None:
    ended = [Ending("done", value=v, metrics={"val_accuracy": v, "train_accuracy": w}) for v, w in ((62, 62), (66, 70))]
    trials = [Trial(number, {}, "done", ending=one) for number, one in enumerate(ended)]
    titles = [column.title for column in columns(trials, Objective("accuracy", "max"))]
    assert titles == ["accuracy", "train_accuracy"]


def _reading(folder: Path, pattern: str | None = None) -> tuple[Reading, Path]:
    path = folder / "events.jsonl"
    run = cast("Run", cast("Any", SimpleNamespace(events_path=path)))
    return Reading(run, Objective("loss", "min", pattern), None), path


def _values(reading: Reading) -> list[float]:
    return [value for _, value in reading.new()]


@cases("printed", "pattern", "value")
def test_a_number_in_many_forms(tmp_path: Path, printed: str, pattern: str, value: float) -> None:
    reading, _ = _reading(tmp_path, pattern)
    reading.output("stdout", printed.encode() + b"\n")
    assert _values(reading)[-1] == value == reading.last_printed and not reading.diverged


def test_a_printed_nan_at_the_end_diverged(tmp_path: Path) -> None:
    reading, _ = _reading(tmp_path, r"loss: (\S+)")
    reading.output("stdout", b"loss: 0.5\nloss: nan\n")
    assert _values(reading) == [0.5] and reading.diverged
    reading.output("stdout", b"loss: 0.4\n")
    assert _values(reading) == [0.4] and not reading.diverged


@cases("phases", "series")
def test_the_series_is_what_came_while_it_trained(tmp_path: Path, phases: list[str], series: str | None) -> None:
    reading, path = _reading(tmp_path)
    path.write_text("".join(f'{{"type":"step","phase":"{phase}","loss":0.5}}\n' for phase in phases))
    reading.new()
    assert reading.series == series


@cases("reported", "diverged")
def test_a_reported_one_that_is_no_finite_number(tmp_path: Path, reported: list[str], diverged: bool) -> None:
    reading, path = _reading(tmp_path)
    path.write_text("".join(f'{{"type":"step","epoch":1,"loss":{one}}}\n' for one in reported))
    reading.new()
    assert reading.diverged is diverged


def test_a_trial_that_diverged_is_named_and_not_drawn() -> None:
    trials = [_printing(at, value) for at, value in enumerate([2.7, 0.1, 0.0, 8.7e69])]
    drawn = history(trials, Objective("loss", "min"))
    assert drawn is not None and drawn[0].title == "loss by trial; diverged: 3"
    assert max(y for line in drawn[0].lines for _, y in line.points) == 2.7
