"""Errors in the words typed: one sentence, the next command, the right exit code, no traceback."""

import shlex

import pytest

from seatrial import cli
from seatrial.cli import errors as problems


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


CASES = {
    "an unknown command": (["rnu", "a.py"], 'Unknown command "rnu"; did you mean run?', "seatrial run a.py"),
    "a word of other tools": (["ps"], "did you mean runs ls?", "seatrial runs ls"),
    "a word of other tools, misspelt": (["lgos", "x"], "did you mean runs logs?", "seatrial runs logs x"),
    "a word like none": (["zzzz"], 'Unknown command "zzzz"', "seatrial --help"),
    "a script as a command": (["train.py"], "Unknown command", "seatrial run train.py"),
    "a script that is not there": (["run", "train.py"], "Script train.py not found", "ls"),
    "a zero": (
        ["run", "digits", "--gpus", "0"],
        "error: --gpus 0 is ambiguous. First GPU: device=0. CPU: none\n",
        "--gpus device=0",
    ),
    "a flag nearly right": (["run", "digits", "--gpu", "1"], "did you mean --gpus?", "seatrial run digits --gpus 1"),
    "a flag of a command below": (["runs", "ls", "--jsno"], "did you mean --json?", "seatrial runs ls --json"),
    "a data folder that is missing": (["run", "digits", "--data", "nowhere"], "does not exist", "ls"),
    "a run that is not there": (["runs", "show", "nothing"], 'No run "nothing"', "seatrial runs ls"),
    "an image on the local backend": (
        ["run", "--image", "x", "--on", "local"],
        "--image needs a container",
        "docker",
    ),
    "a limit without a container": (
        ["run", "digits", "--on", "local", "--memory", "1GB"],
        "needs a container",
        "docker",
    ),
    "several nodes without a cluster": (["plan", "digits", "--on", "local", "--nodes", "2"], "need their names", "k8s"),
    "a secret that is not set": (
        ["run", "digits", "--secret", "NOT_SET_ANYWHERE"],
        "is not set",
        "export NOT_SET_ANYWHERE",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_usage(seatrial, name, tmp_path):
    arguments, sentence, next_command = CASES[name]
    code, out, err = seatrial(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert sentence in err
    assert next_command in err
    assert not (tmp_path / ".seatrial" / "runs").exists() or not list((tmp_path / ".seatrial" / "runs").iterdir())


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


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("run train.py --gpus 2 --on docker", "seatrial run train.py --on docker --gpus none"),
        ("plan --gpus=all mnist -- --gpus 3 'a b'", "seatrial plan mnist --gpus none -- --gpus 3 'a b'"),
        ("runs ls", "seatrial run --gpus none …"),  # it has no --gpus
    ],
)
def test_without_gpus_is_the_users_own_command(typed, run):
    advice = "seatrial doctor    # or, to run on the CPU: seatrial run --gpus none …"
    assert problems.as_typed(advice, shlex.split(typed)) == f"seatrial doctor    # or, to run on the CPU: {run}"
    assert problems.as_typed("ls", ["run"]) == "ls" and problems.as_typed(None, ["run"]) is None


def test_advice_for_a_sweep_has_its_own_words():
    typed = ["sweep", "a b.py", "--set", "lr=1,2", "--set", "bs=3", "--", "-x"]
    shown = problems.as_typed("seatrial sweep … --metric-from 'x[:=]+([.]+)'   # see", typed)
    assert shown == "seatrial sweep 'a b.py' --set lr=1,2 --set bs=3 --metric-from 'x[:=]+([.]+)' -- -x   # see"
    assert problems.as_typed("seatrial run … --shm-size 8g", typed) == "seatrial run … --shm-size 8g"


def test_names_keep_their_case(seatrial, tmp_path):
    (tmp_path / "legacy").mkdir()
    assert "error: The target legacy is a folder, not a script" in seatrial("plan", "legacy")[2]
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\n")
    (tmp_path / "train.py").write_text("import torch\n")
    err = seatrial("plan", "train.py", "--on", "local", "--target", "driver=535.129,gpu=A4000")[2]
    assert "Torch" not in err


@pytest.mark.parametrize(
    ("typed", "advised"),
    [
        (["--on", "local", "--fast", "fit.py"], "seatrial run --on local fit.py -- --fast"),
        (["--lr=0.1", "fit.py", "x"], "seatrial run fit.py -- --lr=0.1 x"),
        (["--lr", "0.1", "fit.py"], "seatrial run fit.py -- --lr 0.1"),
    ],
)
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


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("tune a.py --gpus=-1", "seatrial tune --gpus all a.py"),
        ("sweep a.py --set lr=1,2 --gpus=-1 -- -x", "seatrial sweep --gpus all a.py --set lr=1,2 -- -x"),
        ("build a.py --gpus=-1", "seatrial build --gpus all a.py"),
        ("plan ./pkg/b.py --gpus none -- --k 3", "seatrial plan -m pkg.b --gpus none -- --k 3"),
    ],
)
def test_the_advice_is_the_users_own_command(seatrial, tmp_path, typed, fix):
    (tmp_path / "a.py").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/b.py").write_text("from . import c\n")
    code, _, err = seatrial(*typed.split())
    assert code == 2 and err.endswith(f"fix: {fix}\n")
