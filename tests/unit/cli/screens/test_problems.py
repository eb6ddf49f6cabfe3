"""Errors in the words typed: one sentence, the next command, the right exit code, no traceback."""

import shlex

import pytest

from seatrial import cli
from seatrial.cli import errors as problems
from tables import cases


@pytest.fixture
def seatrial(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty project; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seatrial"])

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._main(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def test_a_defect_of_ours_keeps_its_traceback_for_the_report(seatrial, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("unheard of")

    monkeypatch.setattr("seatrial.runs.run_actions.prune", broken)
    code, _, err = seatrial("runs", "prune")
    assert code == 5
    assert "Internal error: RuntimeError: unheard of" in err
    assert ".traceback" in err


def test_an_unknown_key_names_file_key_and_the_nearest(seatrial, tmp_path):
    (tmp_path / "seatrial.toml").write_text("gpu = 1\n")
    code, _, err = seatrial("run", "digits")
    assert code == 2
    assert "seatrial.toml: gpu: unknown key; did you mean gpus?" in err


@cases("typed", "run")
def test_without_gpus_is_the_users_own_command(typed, run):
    advice = "seatrial doctor    # or, to run on the CPU: seatrial run --gpus none …"
    assert problems.as_typed(advice, shlex.split(typed)) == f"seatrial doctor    # or, to run on the CPU: {run}"
    assert problems.as_typed("ls", ["run"]) == "ls" and problems.as_typed(None, ["run"]) is None


def test_advice_for_a_sweep_has_its_own_words():
    typed = ["sweep", "a b.py", "--set", "lr=1,2", "--set", "bs=3", "--", "-x"]
    shown = problems.as_typed("seatrial sweep … --metric-from 'x[:=]+([.]+)'   # see", typed)
    assert shown == "seatrial sweep 'a b.py' --set lr=1,2 --set bs=3 --metric-from 'x[:=]+([.]+)' -- -x   # see"
    assert problems.as_typed("seatrial run … --shm-size 8g", typed) == "seatrial run … --shm-size 8g"


@cases("typed", "advised")
def test_an_unknown_option_takes_no_script_for_its_value(seatrial, tmp_path, typed, advised):
    (tmp_path / "fit.py").touch()
    code, _, err = seatrial("run", *typed)
    assert (code, err.splitlines()[-1].strip()) == (2, f"fix: {advised}")


def test_a_script_outside_of_the_project_is_run_from_its_folder_with_the_options(seatrial, tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    _, _, err = seatrial("run", "../train.py", "--gpus", "none", "--", "--lr", "1")
    assert "fix: cd .. && seatrial run train.py --gpus none -- --lr 1\n" in err


def test_the_command_with_the_target_that_was_intended_keeps_its_options(seatrial, tmp_path):
    (tmp_path / "train.py").touch()
    _, _, err = seatrial("run", "traim.py", "--gpus", "none", "--name", "first", "--", "--lr", "1")
    assert "fix: seatrial run train.py --gpus none --name first -- --lr 1\n" in err
    _, _, err = seatrial("tune", "--gpus", "none", "traim.py")
    assert "fix: seatrial tune --gpus none train.py\n" in err
    _, _, err = seatrial("run", "traim.py", "--name", "traim.py")
    assert "fix: seatrial run --name traim.py train.py\n" in err


@cases("typed", "fix")
def test_the_advice_is_the_users_own_command(seatrial, tmp_path, typed, fix):
    (tmp_path / "a.py").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/b.py").write_text("from . import c\n")
    code, _, err = seatrial(*typed.split())
    assert code == 2 and err.endswith(f"fix: {fix}\n")
