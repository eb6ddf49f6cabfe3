"""``seatrial sweep`` from the command line to the page: real Optuna, real runs, kill -9, two terminals, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project
from seatrial.search.study import Study
from seatrial.search.trial import Trial

pytest.importorskip("optuna", reason="Optuna is not installed")

#: Accuracy is best at a learning rate of 0.003; each epoch takes a moment. It prints its numbers, too.
SCRIPT = """
import argparse, json, math, os, time
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.01); p.add_argument("--batch", type=int, default=64)
p.add_argument("--epochs", type=int, default=4); p.add_argument("--pause", type=float, default=0.05)
a = p.parse_args()
for epoch in range(1, a.epochs + 1):
    time.sleep(a.pause)
    accuracy = (1 - 0.1 * abs(math.log10(a.lr) + 2.5) - 0.0005 * a.batch) * (1 - 0.5 ** epoch)
    print(f"epoch {epoch} accuracy: {accuracy:.4f}", flush=True)
    with open(os.environ["SEATRIAL_EVENTS"], "a") as file:
        file.write(json.dumps({"epoch": epoch, "accuracy": accuracy, "loss": 1 - accuracy}) + chr(10))
"""

SPACE = ("--set", "lr=log:1e-5..1e-1", "--metric", "accuracy:max")


@pytest.fixture
def project(local_project: Project) -> Project:
    local_project.write("train.py", SCRIPT)
    return local_project


def _words(*words: str) -> list[str]:
    return ["sweep", "train.py", "--on", "local", "--gpus", "none", *words]


def _study(project: Project) -> Study:
    """The newest."""
    journals = (project.folder / ".seatrial" / "sweeps").glob("*/study.journal")
    return Study(max(journals, key=lambda path: path.stat().st_mtime).resolve())


def _trials(project: Project) -> list[Trial]:
    return _study(project).trials()


def _start(project: Project, *words: str) -> subprocess.Popen[str]:
    return project.begin(*_words(*words))


def _wait(project: Project, holds: Any, searcher: subprocess.Popen[str]) -> None:
    """Until something is true of the study's trials."""

    def came_so_far() -> bool:
        assert searcher.poll() is None, searcher.communicate()
        begun = any((project.folder / ".seatrial" / "sweeps").glob("*/study.journal"))
        return begun and bool(holds(_trials(project)))

    project.wait_for(came_so_far)


def _receipt(project: Project, run_id: str | None) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project.folder / ".seatrial/runs" / str(run_id) / "receipt.json").read_bytes())
    return loaded


def test_tpe_prunes_what_falls_behind_and_names_the_best(project: Project) -> None:
    options = ("--set", "batch=32,64,128", "--trials", "8", "--seed", "2", "--", "--pause", "0.15")
    ended = project.cli(*_words("--search", "tpe", *SPACE, *options))
    trials = _trials(project)
    assert len(trials) == 8 and {trial.state for trial in trials} == {"done", "pruned"}
    best = max((trial for trial in trials if trial.state == "done"), key=lambda trial: trial.value or 0.0)
    assert f"best: accuracy {best.value:.5g} with {best.label} (run {best.run_id})" in ended.stderr
    pruned = next(trial for trial in trials if trial.state == "pruned")
    receipt = _receipt(project, pruned.run_id)
    assert receipt["exit_cause"]["id"] == "pruned" and receipt["outcome"]["id"] == "pruned"
    assert receipt["exit_code"] == 0 and "accuracy" in receipt["outcome"]["words"]
    assert receipt["outcome"]["words"] in " ".join(ended.stdout.split()) or "Pruned after" in ended.stdout
    page = (project.folder / ".seatrial" / "sweeps" / _study(project).definition.name / "index.html").read_text()
    assert f"runs/{pruned.run_id}/receipt.html" in page and "Pruned after" in page
    assert "pruned" in project.cli("runs", "ls").stdout.lower()


def test_a_last_evaluation_is_not_what_later_trials_are_pruned_by(project: Project) -> None:
    last = """
with open(os.environ["SEATRIAL_EVENTS"], "a") as file:
    file.write(json.dumps({"phase": "test", "accuracy": accuracy}) + chr(10))
"""
    project.write("train.py", SCRIPT.replace('"epoch": epoch, ', '"epoch": epoch, "phase": "val", ') + last)
    project.cli(*_words("--set", "lr=0.003,1e-5,1e-6", "--metric", "accuracy:max"))
    study = _study(project)
    assert study.get("series") == "val_accuracy"
    assert [len(trial.reports) for trial in study.trials()] == [5, 4, 4]
    assert all("test_accuracy" in trial.ending.metrics for trial in study.trials() if trial.ending)


@pytest.mark.slow
def test_a_script_that_only_prints_is_read_by_a_pattern(project: Project) -> None:
    project.write("train.py", SCRIPT.replace('with open(os.environ["SEATRIAL_EVENTS"], "a") as file:', "if 0:"))
    project.cli(*_words("--search", "random", *SPACE, "--metric-from", r"accuracy: ([\d.]+)", "--trials", "2"))
    for trial in _trials(project):
        assert trial.state == "done" and len(trial.reports) == 4
        assert trial.value == trial.reports[-1].value and 0 < (trial.value or 0) < 1


def test_a_grid_is_as_it_was(project: Project) -> None:
    ended = project.cli(*_words("--set", "lr=0.1,0.01", "--set", "epochs=1,2", "--parallel", "2", "--json"))
    results = json.loads(ended.stdout)
    assert [tuple(result["settings"].values()) for result in results] == [
        ("0.1", "1"),
        ("0.1", "2"),
        ("0.01", "1"),
        ("0.01", "2"),
    ]
    assert all(result["exit_code"] == 0 and result["metrics"]["accuracy"] > 0 for result in results)
    assert all(result["seconds"] > 0 and result["outcome"] == "done on the CPU" for result in results)


def test_the_file_reports_what_the_flags_do_not(project: Project) -> None:
    project.write(
        "seatrial.toml",
        'target = "train.py"\n[sweep]\nsearch = "random"\ntrials = 2\nmetric = "accuracy:max"\n'
        '[sweep.set]\nlr = "log:1e-4..1e-1"\nepochs = [1, 2]\n',
    )
    project.cli("sweep", "--on", "local", "--gpus", "none", "--set", "epochs=1")
    trials = _trials(project)
    assert len(trials) == 2 and all(trial.settings["epochs"] == "1" for trial in trials)
    project.write("seatrial.toml", "[sweep]\nserach = 'tpe'\n")
    assert "did you mean search?" in project.cli(*_words(), exit_code=2).stderr
    project.write("seatrial.toml", "[sweep]\nsearch = 'tpee'\n")
    assert "Unknown search 'tpee'" in project.cli(*_words("--set", "lr=1,2"), exit_code=2).stderr


def test_a_searcher_that_is_killed_is_gone_on_with_by_the_same_command(project: Project) -> None:
    words = ("--search", "tpe", *SPACE, "--prune", "none", "--trials", "3", "--", "--pause", "0.4")
    first = _start(project, *words)
    _wait(project, lambda trials: len(trials) == 2 and trials[1].reports, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    left = _trials(project)[1]
    assert left.state == "running" and left.run_id is not None
    ended = project.cli(*_words(*words))
    trials = _trials(project)
    assert [trial.state for trial in trials] == ["done"] * 3 and trials[1].run_id == left.run_id
    assert [report.step for report in trials[1].reports] == [1, 2, 3, 4]
    assert f"following run {left.run_id}" in ended.stderr
    again = project.cli(*_words(*words))  # a study that is complete is not gone on with
    assert "going on" not in again.stderr


def _is_target(process: Path, folder: Path) -> bool:
    """Return whether a process is the script itself and not its parent."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return words[1].endswith(b"train.py") and (process / "cwd").readlink() == folder
    except (OSError, IndexError):
        return False


@pytest.mark.slow
def test_a_trial_that_is_killed_fails_and_the_study_goes_on(project: Project) -> None:
    searcher = _start(project, *SPACE, "--search", "random", "--trials", "2", "--", "--pause", "0.4")
    _wait(project, lambda trials: trials and trials[0].reports, searcher)
    [target] = [one for one in Path("/proc").glob("[0-9]*") if _is_target(one, project.folder)]
    os.kill(int(target.name), signal.SIGKILL)
    out, err = searcher.communicate(timeout=240)
    assert searcher.returncode == 0, err
    first, second = _trials(project)
    assert (first.state, second.state) == ("failed", "done") and first.ending is not None
    assert "SIGKILL" in first.ending.outcome and "SIGKILL" in " ".join(out.split())


@pytest.mark.slow
def test_two_terminals_work_on_one_study(project: Project) -> None:
    words = ("--search", "random", *SPACE, "--trials", "6", "--study", "shared", "--", "--pause", "0.6")
    first = _start(project, *words)
    _wait(project, lambda trials: trials, first)
    second = project.cli("sweep", "--resume", "shared")
    _, err = first.communicate(timeout=240)
    assert first.returncode == 0, err
    trials = _trials(project)
    assert len(trials) == 6 and {trial.state for trial in trials} == {"done"}
    reported = [line for text in (err, second.stderr) for line in text.splitlines() if "done on the CPU" in line]
    assert len(reported) == 6 and any("done on the CPU" in line for line in second.stderr.splitlines())


@pytest.mark.slow
def test_ctrl_c_stops_and_resume_runs_again_what_was_stopped(project: Project) -> None:
    searcher = _start(project, *SPACE, "--search", "random", "--trials", "2", "--study", "s", "--", "--pause", "0.4")
    _wait(project, lambda trials: trials and trials[0].reports, searcher)
    searcher.send_signal(signal.SIGINT)
    _, err = searcher.communicate(timeout=240)
    assert searcher.returncode == 130 and "seatrial sweep --resume s" in err and "running trials got SIGINT" in err
    [stopped] = _trials(project)
    assert stopped.state == "stopped" and "Stopped by the user" in (stopped.ending.outcome if stopped.ending else "")
    project.cli("sweep", "--resume", "s")
    assert [trial.state for trial in _trials(project)] == ["done", "done"]


@pytest.mark.slow
def test_a_budget_ends_the_search_and_is_reported(project: Project) -> None:
    project.cli(*_words("--search", "random", *SPACE, "--budget", "2s", "--", "--pause", "0.3"), exit_code=None)
    last = _trials(project)[-1]
    assert last.state == "stopped" and last.ending is not None
    assert "Stopped by the search" in last.ending.outcome and "its time was over" in last.ending.outcome


def _refused(project: Project, *words: str, exit_code: int = 2) -> str:
    """Return the message on one line."""
    return " ".join(project.cli(*_words(*words), exit_code=exit_code).stderr.split())


def test_a_metric_that_nobody_reports_ends_it_after_the_first_trial(project: Project) -> None:
    reported = _refused(project, "--set", "lr=0.1,0.2,0.3", "--metric", "acc:max")
    assert "No trial reports acc: trial 0" in reported and "reported accuracy, loss" in reported
    assert "--metric accuracy:max" in reported and len(_trials(project)) == 1
    reported = _refused(project, "--set", "lr=0.1,0.2", "--metric", "f1:max", "--metric-from", r"f1 = ([\d.]+)")
    assert (
        "matched no number in the output of trial 0" in reported and "its last line was: epoch 4 accuracy" in reported
    )


@pytest.mark.slow
def test_a_script_that_reports_nothing_at_all(project: Project) -> None:
    project.write("train.py", "import sys; '--lr'; print('trained')")
    reported = _refused(project, "--set", "lr=0.1,0.2", "--metric", "loss:min")
    assert "reported no metric at all" in reported and "--metric-from" in reported


@pytest.mark.slow
def test_a_script_that_ignores_the_setting(project: Project) -> None:
    reported = _refused(project, "--set", "momentum=0.1,0.2", "--metric", "accuracy:max")
    assert "no way to set momentum" in reported and 'parser.add_argument("--momentum")' in reported
    project.write("train.py", SCRIPT.replace("a = p.parse_args()", "a = p.parse_args(); a.lr = 0.01"))
    reported = _refused(project, "--search", "random", "--trials", "20", *SPACE, "--", "--epochs", "1")
    assert "The setting lr makes no difference: 5 trials reported exactly the same numbers" in reported
    assert "seatrial runs compare" in reported and len([t for t in _trials(project) if t.state == "done"]) == 5


@pytest.mark.slow
def test_a_trial_that_always_fails_ends_it_after_five(project: Project) -> None:
    project.write("train.py", "'--lr'; raise RuntimeError('no such data')")
    reported = _refused(project, "--search", "random", "--trials", "20", *SPACE, exit_code=1)
    assert (
        "5 trials failed and none ended well" in reported
        and "no such data" in reported
        and "seatrial runs show" in reported
    )
    trials = _trials(project)
    assert len(trials) == 5 and all(trial.state == "failed" for trial in trials)


def test_bad_input_is_one_sentence_and_the_next_command(project: Project) -> None:
    reported = _refused(project, "--set", "lr=log:0..1")
    assert "a logarithmic range begins above zero" in reported and "--set lr=log:1e-6..1" in reported
    reported = _refused(project, "train.py", "--set", "lr=1,2", "--address", "10.0.0.1:6379")
    assert "--engine ray" in reported
    reported = project.cli("sweep", "--resume", "nobody", "--set", "lr=1,2", exit_code=2).stderr
    assert "--resume cannot be combined with --set" in reported
    reported = project.cli("sweep", "--resume", "nobody", exit_code=2).stderr
    assert "Study nobody not found in this project" in reported
    assert project.runs == []
