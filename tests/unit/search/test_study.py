"""The study's file: shared by processes, whole after kill -9, and true about whose trials are whose."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("optuna", reason="optuna is not installed")

from seatrial.errors import SeatrialError
from seatrial.search.request import Definition
from seatrial.search.study import Study, _this_host
from seatrial.search.trial import Ending, TrialReport
from tables import constant

DEFINITION = Definition(name="s", title="train.py", space=("a=int:1..500",), search="grid", objective="x:max")

#: Asks until none are left, one at a time.
ASKING = constant(__file__, "ASKING")


def made(folder: Path, definition: Definition = DEFINITION) -> Study:
    path = folder / definition.name / "study.journal"
    path.parent.mkdir(exist_ok=True)
    return Study.create(path, definition)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return made(tmp_path)


def _ask(study: Study) -> int:
    trial = study.ask()
    assert trial is not None
    return trial.number


def test_trial_from_ask_to_report(study: Study) -> None:
    number = _ask(study)
    study.begin(number, "run-1")
    study.report(number, 1, 0.25)
    study.report(number, 2, 0.5)
    study.report(number, 2, 0.75)  # again after a restart
    study.tell(number, Ending("done", value=0.8, outcome="fine", measured={"seconds": 2.0}))
    study.tell(number, Ending("failed"))  # too late
    [trial] = Study(study.path).trials()
    assert trial.state == "done" and trial.value == 0.8 and trial.run_id == "run-1"
    assert trial.reports == (TrialReport(1, 0.25), TrialReport(2, 0.75)) and trial.begun_at is not None
    assert Study(study.path).definition == DEFINITION and trial.settings == {"a": "1"}


def test_optuna_opens_the_same_file(study: Study) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    study.tell(_ask(study), Ending("done", value=0.8))
    opened = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(study.path))))
    assert opened.best_value == 0.8 and opened.best_params == {"a": 1}


def test_processes_share_a_study_and_no_two_try_the_same(study: Study) -> None:
    words = [sys.executable, "-c", ASKING, str(study.path), "24"]
    searchers = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(3)]
    assert [searcher.wait() for searcher in searchers] == [0, 0, 0]
    trials = study.trials()
    assert [trial.number for trial in trials] == list(range(24))
    assert {trial.settings["a"] for trial in trials} == {str(value) for value in range(1, 25)}
    assert all(trial.state == "done" for trial in trials)


def test_kill_9_anywhere_leaves_a_study_that_can_be_read_and_gone_on_with(study: Study) -> None:
    for place in range(4):
        searcher = subprocess.Popen([sys.executable, "-c", ASKING, str(study.path), "500"], stdout=subprocess.PIPE)
        assert searcher.stdout is not None and searcher.stdout.readline()
        time.sleep(0.02 * place)
        searcher.send_signal(signal.SIGKILL)
        searcher.wait()
        study.trials()
        for lost in study.take_lost():
            study.again(lost.number)
    waiting = [trial.number for trial in study.trials() if trial.state == "waiting"]
    settings = [trial.settings["a"] for trial in study.trials()]
    assert len(settings) == len(set(settings))
    assert not waiting or _ask(study) == waiting[0]  # what was lost is run again first


@pytest.mark.parametrize("left", [1, 17, 40])
def test_line_that_was_not_finished_is_cut_off(study: Study, left: int) -> None:
    _ask(study)
    whole = study.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    study.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    again = Study(study.path)
    _ask(again)
    assert all(json.loads(line) for line in study.path.read_bytes().splitlines())
    assert Study(study.path).trials()


@pytest.mark.parametrize(("owner", "taken"), [("{pid}/1/{host}", True), ("1/1/another/machine", False)])
def test_lost_trials_are_those_of_dead_processes_of_this_machine(
    study: Study, monkeypatch: pytest.MonkeyPatch, owner: str, taken: bool
) -> None:
    _ask(study)
    assert study.take_lost() == []
    name = owner.format(pid=os.getpid(), host=_this_host())
    monkeypatch.setattr("seatrial.search.study._this_owner", lambda: name)
    gone = _ask(study)
    monkeypatch.undo()
    assert [trial.number for trial in study.take_lost()] == [gone] * taken and study.take_lost() == []


def test_trial_whose_run_never_began_is_the_next(study: Study) -> None:
    first, second = _ask(study), _ask(study)
    study.begin(first, "run-1")
    study.again(first)
    trial = study.ask()
    assert trial is not None and (trial.number, trial.run_id, trial.reports) == (first, None, ())
    assert second == 1


@pytest.mark.parametrize("ended", [True, False])
def test_trial_that_was_stopped_or_lost_runs_again_without_its_reports(study: Study, ended: bool) -> None:
    number = _ask(study)
    study.begin(number, "run-1")
    study.report(number, 1, 0.5)
    if ended:
        study.tell(number, Ending("stopped", value=0.5))
        assert study.retry_stopped() == 1
    else:
        study.again(number)
    [waiting] = study.trials()
    assert waiting.state == "waiting" and waiting.value is None and waiting.settings == {"a": "1"}
    again = study.ask(most=1)
    assert again is not None and again.number == waiting.number and again.reports == () and again.run_id is None


def test_file_that_is_no_study_is_an_error_with_the_next_command(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged" / "study.journal"
    damaged.parent.mkdir()
    damaged.write_bytes(b"not a journal, but long enough to be read\n" * 40)
    for path, words in ((damaged, "is damaged"), (tmp_path / "none" / "study.journal", "cannot be read")):
        with pytest.raises(SeatrialError, match=words) as caught:
            Study(path).trials()
        assert caught.value.run


#: Begins a trial, and waits to be killed.
BEGINNING = constant(__file__, "BEGINNING")


def test_study_whose_searcher_was_killed_is_not_running(study: Study) -> None:
    assert study.standing() == "stopped"
    with subprocess.Popen([sys.executable, "-c", BEGINNING, str(study.path)], stdout=subprocess.PIPE) as searcher:
        assert searcher.stdout is not None and searcher.stdout.readline() == b"ready\n"
        assert study.standing() == "running" and [one.state for one in study.shown()] == ["running"]
        searcher.kill()
    assert study.standing() == "stopped" and [one.state for one in study.shown()] == ["not followed"]
    assert [one.state for one in study.trials()] == ["running"], "the next searcher takes it over"
    [lost] = study.take_lost()
    assert [one.state for one in study.shown()] == ["running"] and study.standing() == "running"
    study.tell(lost.number, Ending("done", value=1.0))
    study.leave()
    assert study.standing() == "stopped"
    study.put("ended", "the disk is full")
    assert study.standing() == "failed"
    study.put("ended", "complete")
    assert study.standing() == "done"
    _ask(study)
    assert study.standing() == "running", "another trial makes it run"


def searched(folder: Path, search: str, seed: int, space: tuple[str, ...], trials: int) -> list[dict[str, str]]:
    """Settings that a search asks for; accuracy is best at a learning rate of 0.003 and a batch of 64."""
    study = made(folder, Definition(f"{search}-{seed}", "t", space, search, "accuracy:max", seed=seed))
    requested: list[dict[str, str]] = []
    while len(requested) < trials and (trial := study.ask()) is not None:
        requested.append(trial.settings)
        study.tell(trial.number, Ending("done", value=accuracy(trial.settings)))
    return requested


def accuracy(settings: dict[str, str]) -> float:
    return 1 - abs(math.log10(float(settings["lr"])) + 2.5) - abs(math.log2(float(settings["batch"])) - 6) / 8


@pytest.mark.parametrize("search", ["grid", "random", "tpe"])
def test_space_that_is_used_up_ends_the_search_and_nothing_is_tried_twice(tmp_path: Path, search: str) -> None:
    requested = searched(tmp_path, search, 3, ("lr=0.1,0.01,0.001", "batch=32,64"), 20)
    assert len(requested) == 6 == len({tuple(one.items()) for one in requested})
    assert search != "grid" or [one["lr"] for one in requested] == ["0.1", "0.1", "0.01", "0.01", "0.001", "0.001"]


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_same_seed_asks_for_the_same(tmp_path: Path, search: str) -> None:
    space = ("lr=log:1e-5..1", "batch=int:log:8..512", "p=0..0.5:0.1", "word=a,b")
    (tmp_path / "again").mkdir()
    first = searched(tmp_path, search, 5, space, 12)
    assert first == searched(tmp_path / "again", search, 5, space, 12) != searched(tmp_path, search, 6, space, 12)
    for one in first:
        assert 1e-5 <= float(one["lr"]) <= 1 and 8 <= int(one["batch"]) <= 512 and one["word"] in "ab"


@pytest.mark.slow
def test_tpe_learns(tmp_path: Path) -> None:
    space = ("lr=log:1e-6..1", "batch=8,16,32,64,128,256")

    def best(search: str, seed: int) -> float:
        return max(map(accuracy, searched(tmp_path, search, seed, space, 30)))

    assert fmean(best("tpe", seed) for seed in range(5)) > fmean(best("random", seed) for seed in range(5))


@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("prune", ["asha", "median"])
def test_trial_that_falls_behind_is_pruned_and_the_leader_goes_on(tmp_path: Path, prune: str, direction: str) -> None:
    study = made(tmp_path, Definition("p", "t", ("a=int:1..99",), "grid", f"x:{direction}", prune=prune))
    sign = 1 if direction == "max" else -1
    for quality in range(8):
        number = _ask(study)
        for step in range(1, 5):
            study.report(number, step, sign * 0.1 * quality * step)
        study.tell(number, Ending("done", value=sign * quality))
    for value, falls in ((0.05, True), (9.0, False)):
        number = _ask(study)
        answers = [study.report(number, step, sign * value * step) for step in range(1, 5)]
        assert any(answers) is falls
        study.tell(number, Ending("pruned" if falls else "done", value=sign * value))
