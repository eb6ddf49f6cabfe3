"""The engines and pruners: real Optuna, asked with all trials each time."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from seatrial.search.engine import Engine
from seatrial.search.engines import ENGINES, PRUNERS
from seatrial.search.importance import importances
from seatrial.search.objective import Objective
from seatrial.search.space import Settings, Space, parse_space
from seatrial.search.trial import Ending, Report, State, Trial

ACCURACY = Objective("accuracy", "max")


def _trial(number: int, settings: Settings, value: float | None, state: State = "done", reports: int = 0) -> Trial:
    told = tuple(Report(step, value or 0.0) for step in range(1, reports + 1))
    ending = None if state == "running" else Ending(state, value=value)
    return Trial(number, settings, state, reports=told, ending=ending)


def _search(engine: Engine, space: Space, trials: int) -> list[Trial]:
    """Trials whose accuracy is best at a learning rate of 0.003 and a batch of 64."""
    done: list[Trial] = []
    for number in range(trials):
        settings = engine.ask(space, ACCURACY, done)
        if settings is None:
            break
        value = 1 - abs(math.log10(float(settings["lr"])) + 2.5) - abs(math.log2(float(settings["batch"])) - 6) / 8
        done.append(_trial(number, settings, value))
    return done


def test_a_grid_is_every_combination_once_in_order() -> None:
    space = parse_space(["a=1,2", "b=int:1..2"])
    made = []
    while (settings := ENGINES["grid"](0).ask(space, None, made)) is not None:
        made.append(_trial(len(made), settings, None))
    assert [tuple(one.settings.values()) for one in made] == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_space_that_is_used_up_ends_the_search_and_nothing_is_tried_twice(name: str) -> None:
    done = _search(ENGINES[name](3), parse_space(["lr=0.1,0.01,0.001", "batch=32,64"]), 20)
    assert len(done) == 6 == len({tuple(one.settings.items()) for one in done})


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_the_same_seed_asks_for_the_same(name: str) -> None:
    space = parse_space(["lr=log:1e-5..1", "batch=int:log:8..512", "p=0..0.5:0.1", "word=a,b"])
    first = [one.settings for one in _search(ENGINES[name](5), space, 14)]
    assert first == [one.settings for one in _search(ENGINES[name](5), space, 14)]
    assert first != [one.settings for one in _search(ENGINES[name](6), space, 14)]
    for one in first:
        assert 1e-5 <= float(one["lr"]) <= 1 and 8 <= int(one["batch"]) <= 512 and one["word"] in "ab"


def test_tpe_learns() -> None:
    space = parse_space(["lr=log:1e-6..1", "batch=8,16,32,64,128,256"])

    def best(name: str, seed: int) -> float:
        return max(one.value or 0.0 for one in _search(ENGINES[name](seed), space, 30))

    assert fmean(best("tpe", seed) for seed in range(5)) > fmean(best("random", seed) for seed in range(5))


def test_tpe_with_trials_that_run_failed_or_never_reported() -> None:
    space = parse_space(["lr=log:1e-5..1e-1"])
    others = [
        _trial(0, {"lr": "0.001"}, None, "running"),
        _trial(1, {"lr": "0.002"}, None, "failed"),
        _trial(2, {"lr": "0.003"}, None, "pruned"),
        _trial(3, {"lr": "0.004"}, 0.9, "stopped"),
        _trial(4, {"lr": "0.1"}, 0.5, "pruned", reports=2),
        _trial(5, {"lr": "0.09999996"}, 0.5),
    ]
    assert ENGINES["tpe"](0).ask(space, ACCURACY, others) is not None


@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("name", list(PRUNERS))
def test_what_falls_behind_is_pruned_and_what_leads_goes_on(name: str, direction: str) -> None:
    objective = parse = Objective("accuracy", "max" if direction == "max" else "min")
    sign = 1 if direction == "max" else -1
    pruner = PRUNERS[name]()
    trials: list[Trial] = []
    for number in range(8):
        trial = _trial(number, {}, None, "running")
        for step in range(1, 5):
            trial = _with_report(trial, step, sign * 0.1 * number * step)
            notes = pruner.judge(objective, [*trials, trial], trial).notes
            trial = Trial(**{**vars(trial), "notes": notes})
        trials.append(Trial(**{**vars(trial), "state": "done", "ending": Ending("done", value=trial.value)}))
    for value, falls in ((0.05, True), (9.0, False)):
        late = _trial(8, {}, None, "running")
        answers = []
        for step in range(1, 5):
            late = _with_report(late, step, sign * value * step)
            answer = pruner.judge(parse, [*trials, late], late)
            late = Trial(**{**vars(late), "notes": answer.notes})
            answers.append(answer.why)
        assert any(answers) is falls
        if falls:
            words = next(filter(None, answers))
            assert words.startswith("accuracy") and "of 9 trials" in words


def _with_report(trial: Trial, step: int, value: float) -> Trial:
    return Trial(**{**vars(trial), "reports": (*trial.reports, Report(step, value))})


def test_importance_says_which_setting_decides() -> None:
    space = parse_space(["lr=log:1e-5..1", "word=a,b,c"])
    done = [
        _trial(number, {"lr": f"{10 ** (-number / 6):.6g}", "word": "abc"[number % 3]}, -abs(number - 12.0))
        for number in range(24)
    ]
    shares = importances(space, ACCURACY, done)
    assert shares["lr"] > shares["word"] and sum(shares.values()) == pytest.approx(1)
    assert importances(space, ACCURACY, done[:3]) == {} and importances(space, None, done) == {}
