"""The study's file: shared by processes, whole after kill -9, and honest about whose trials are whose."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seatrial.errors import SeatrialError, UsageError
from seatrial.search.study import Definition, Study
from seatrial.search.trial import Ending, Report

DEFINITION = Definition(name="s", title="train.py", space=("a=int:1..500",), search="grid", objective="x:max")

#: Asks until there are no more, one at a time.
ASKING = """
import sys
from pathlib import Path
from seatrial.search.grid import Grid
from seatrial.search.study import Study
from seatrial.search.trial import Ending
study = Study(Path(sys.argv[1]))
space = study.definition.parsed_space()
print("ready", flush=True)
while (trial := study.ask(lambda trials: Grid().ask(space, None, trials), most=int(sys.argv[2]))) is not None:
    study.begin(trial.number, f"run-{trial.number}")
    study.report(trial.number, 1, 0.5)
    study.tell(trial.number, Ending("done", value=0.5))
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study.create(tmp_path / "study.sqlite", DEFINITION)


def _ask(study: Study) -> int:
    trial = study.ask(lambda trials: {"a": str(len(trials))})
    assert trial is not None
    return trial.number


def test_a_trial_from_asked_to_told(study: Study) -> None:
    number = _ask(study)
    study.begin(number, "run-1")
    study.report(number, 1, 0.25)
    study.report(number, 2, 0.5)
    study.report(number, 2, 0.75)  # told again after a restart
    study.note(number, {"rung": 1})
    study.tell(number, Ending("done", value=0.8, outcome="fine", measured={"seconds": 2.0}))
    study.tell(number, Ending("failed"))  # too late
    [trial] = Study(study.path).trials()
    assert trial.state == "done" and trial.value == 0.8 and trial.run_id == "run-1" and trial.notes == {"rung": 1}
    assert trial.reports == (Report(1, 0.25), Report(2, 0.75)) and trial.begun_at is not None
    assert Study(study.path).definition == DEFINITION


def test_no_more_than_was_asked_for(study: Study) -> None:
    assert study.ask(lambda trials: {"a": "1"}, most=1) is not None
    assert study.ask(lambda trials: {"a": "2"}, most=1) is None
    assert study.ask(lambda trials: None) is None


def test_two_of_a_name(study: Study) -> None:
    with pytest.raises(UsageError, match="already") as caught:
        Study.create(study.path, DEFINITION)
    assert caught.value.run == "seatrial sweep --resume s"


def test_processes_share_a_study_and_no_two_try_the_same(study: Study) -> None:
    words = [sys.executable, "-c", ASKING, str(study.path), "40"]
    searchers = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(3)]
    assert [searcher.wait() for searcher in searchers] == [0, 0, 0]
    trials = study.trials()
    assert [trial.number for trial in trials] == list(range(40))
    assert {trial.settings["a"] for trial in trials} == {str(value) for value in range(1, 41)}
    assert all(trial.state == "done" for trial in trials)


def test_kill_9_anywhere_leaves_a_study_that_can_be_read_and_gone_on_with(study: Study) -> None:
    for place in range(6):
        searcher = subprocess.Popen([sys.executable, "-c", ASKING, str(study.path), "500"], stdout=subprocess.PIPE)
        assert searcher.stdout is not None and searcher.stdout.readline()
        time.sleep(0.02 * place)
        searcher.send_signal(signal.SIGKILL)
        searcher.wait()
        trials = study.trials()
        assert [trial.number for trial in trials] == list(range(len(trials)))
        for lost in study.take_lost():
            study.again(lost.number)
    waiting = [trial.number for trial in study.trials() if trial.state == "waiting"]
    assert _ask(study) == (waiting[0] if waiting else len(study.trials()) - 1)  # what was lost is run again first


def test_the_trials_of_a_process_that_lives_are_its_own(study: Study) -> None:
    mine = _ask(study)
    assert study.take_lost() == []
    with sqlite3.connect(study.path) as file:
        file.execute("update trials set owner = ?", [json.dumps({"pid": os.getpid(), "started_ticks": 1})])
    assert [trial.number for trial in study.take_lost()] == [mine]
    assert study.take_lost() == []


OTHER_HOST = """
import sys
from pathlib import Path
from seatrial.search import owner
from seatrial.search.study import Study
owner.this_host = lambda: "another/machine"
study = Study(Path(sys.argv[1]))
trial = study.ask(lambda trials: {"a": "1"})
study.begin(trial.number, "run-1")
study.report(trial.number, 1, 0.5)
"""


def test_a_trial_of_another_machine_is_its_own_while_that_one_writes_that_it_is_there(study: Study) -> None:
    subprocess.run([sys.executable, "-c", OTHER_HOST, str(study.path)], check=True)
    # Its process is no more; but a PID of another machine says nothing here.
    assert study.take_lost() == []
    mine = _ask(study)
    assert [trial.state for trial in study.trials()] == ["running", "running"] and mine == 1

    with sqlite3.connect(study.path) as file:
        file.execute("update searchers set seen_at = seen_at - 301 where owner like '%another%'")
    assert study.take_lost() == []  # its run cannot be followed from here
    again = study.ask(lambda trials: None)
    assert again is not None and (again.number, again.run_id, again.reports) == (0, None, ())


def test_a_searcher_writes_that_it_is_there(study: Study) -> None:
    study.seen()
    with sqlite3.connect(study.path) as file:
        file.execute("update searchers set seen_at = 0")
    Study(study.path).seen()
    with sqlite3.connect(study.path) as file:
        ((owner, seen_at),) = file.execute("select owner, seen_at from searchers").fetchall()
    assert json.loads(owner)["process"]["pid"] == os.getpid() and time.time() - seen_at < 60


def test_a_trial_whose_run_never_began_is_the_next_that_is_asked_for(study: Study) -> None:
    first, second = _ask(study), _ask(study)
    study.begin(first, "run-1")
    study.report(first, 1, 0.5)
    study.again(first)
    trial = study.ask(lambda trials: None)
    assert trial is not None and (trial.number, trial.run_id, trial.reports) == (first, None, ())
    assert second == 1


def test_what_was_stopped_can_be_run_again(study: Study) -> None:
    number = _ask(study)
    study.tell(number, Ending("stopped", value=0.1))
    assert study.retry_stopped() == 1
    [trial] = study.trials()
    assert trial.state == "waiting" and trial.value is None


def test_files_that_are_no_study(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"not a database, but long enough to be looked at" * 40)
    later = tmp_path / "later" / "study.sqlite"
    later.parent.mkdir()
    with sqlite3.connect(later) as file:
        file.execute("pragma user_version = 7")
    for path, words in (
        (damaged, "is damaged"),
        (tmp_path / "none.sqlite", "cannot be read"),
        (later, "another version"),
    ):
        with pytest.raises(SeatrialError, match=words) as caught:
            Study(path).trials()
        assert caught.value.run


@pytest.mark.parametrize("size", [50, 5000])
def test_a_file_that_was_cut(tmp_path: Path, size: int) -> None:
    study = Study.create(tmp_path / "study.sqlite", Definition("s", "t", ("lr=1,2",), "grid"))
    study.path.write_bytes(study.path.read_bytes()[:size])
    with pytest.raises(SeatrialError, match="is damaged") as caught:
        _ = study.is_made and study.trials()
    assert "--study" in (caught.value.run or "")


#: Begins a trial, and waits to be killed.
BEGINNING = """
import sys, time
from pathlib import Path
from seatrial.search.study import Study
study = Study(Path(sys.argv[1]))
trial = study.ask(lambda trials: {"a": "1"})
study.begin(trial.number, "run-1")
print("ready", flush=True)
time.sleep(600)
"""


def test_a_study_whose_searcher_was_killed_is_not_running(study: Study) -> None:
    assert study.standing() == "stopped"
    with subprocess.Popen([sys.executable, "-c", BEGINNING, str(study.path)], stdout=subprocess.PIPE) as searcher:
        assert searcher.stdout is not None and searcher.stdout.readline() == b"ready\n"
        assert study.standing() == "running" and [one.state for one in study.shown()] == ["running"]
        searcher.kill()
    assert study.standing() == "stopped" and [one.state for one in study.shown()] == ["not followed"]
    assert [one.state for one in study.trials()] == ["running"], "whoever goes on takes it over"
    [lost] = study.take_lost()
    assert [one.state for one in study.shown()] == ["running"]
    _ask(study)
    assert study.standing() == "running"
    for number in (lost.number, 1):
        study.tell(number, Ending("done"))
    study.leave()
    assert study.standing() == "stopped"
    study.put("ended", "no room on the disk")
    assert study.standing() == "failed"
    study.put("ended", "complete")
    assert study.standing() == "done"
    _ask(study)
    assert study.standing() == "running", "whoever works on it asks for more than it had"
