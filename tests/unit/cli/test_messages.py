"""Messages for a user in trouble: one plain sentence and the next command."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import pytest
from pydantic_core import SchemaError

from seatrial import cli
from seatrial.cli import errors
from seatrial.errors import UsageError
from seatrial.runs.store import RunStore, new_run_id
from tables import cases, constant

#: Words of the parser's inside, and of Python's.
INSIDE = ("Value error", "Input should", "(s)", "Traceback", "Internal error", "[Errno", "Choose from")

#: words → (the sentence, the next command).
REFUSED = constant(__file__, "REFUSED")
#: words → (text of the file that they name, the sentence, the next command).
COPIED = constant(__file__, "COPIED")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "two words.py").touch()
    (tmp_path / "launch.sh").write_text("torchrun --nproc_per_node 4 train.py\n")
    (tmp_path / "lab.ipynb").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").touch()
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "small.py").touch()
    (tmp_path / "other.yaml").touch()
    return tmp_path


def message(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """(sentence, command) of an error, and nothing else."""
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and lines[0].startswith("error: ") and lines[-1].startswith("  fix: "), (out, err)
    assert not any(word in err for word in INSIDE), err
    return lines[0].removeprefix("error: "), lines[-1].removeprefix("  fix: ")


@pytest.mark.parametrize("words", REFUSED)
def test_a_sentence_and_the_next_command(
    words: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["seatrial", *words.split()])
    assert cli._main(words.split()) in (2, 5)
    sentence, command = message(capsys)
    assert (sentence.replace(str(project), "PROJECT"), command) == REFUSED[words]
    assert not (project / ".seatrial").exists()


@pytest.mark.parametrize(
    "words", ["python train.py --lr 1", "torchrun --nproc_per_node 2 train.py", "mpirun -n 2 t.py", "bash train.sh"]
)
def test_a_command_that_starts_python_is_advised_after_seatrial_run(words: str, project: Path, capsys) -> None:
    assert cli._main(words.split()) == 2
    assert message(capsys)[1] == f"seatrial run {words}"


@pytest.mark.parametrize("words", COPIED)
def test_a_file_of_another_kind(words: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, *expected = COPIED[words]
    (project / next(word for word in words.split() if "." in word)).write_text(text)
    assert cli._main(words.split()) == 2
    assert [*message(capsys)] == expected


def test_a_whole_command_in_quotes_is_advised_without_them(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["run", "python train.py --lr 1", "--on", "local"]) == 2
    assert message(capsys) == ("The whole command is in quotes", "seatrial run python train.py --lr 1 --on local")
    assert cli._main(["run", "my train.py"]) == 2
    assert message(capsys)[0].startswith("Script my train.py not found in")


def test_an_option_of_the_script_is_advised_as_its_verb_takes_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text("parser.add_argument('--time-out')")
    for typed, advised in (
        ("sweep train.py --time-out=1,2", "seatrial sweep train.py --set time-out=1,2"),
        ("run --time-out 5 train.py -- --lr 1", "seatrial run train.py -- --time-out 5 --lr 1"),
    ):
        assert cli._main(typed.split()) == 2
        assert message(capsys) == ("No such option: --time-out", advised)


@pytest.mark.parametrize(("words", "usage"), [("runs", "runs [OPTIONS]"), ("help runs ls", "runs ls ")])
def test_a_group_alone_and_help_with_a_command_show_help(
    words: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._main(words.split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: seatrial {usage}") and err == ""


#: What spoils a file of an ended run's record → words, sentence, with RUN for the run's ID.
SPOILT = {
    ("receipt.json", "no json"): ("runs show RUN", "FOLDER/receipt.json cannot be read by this version of seatrial"),
    ("receipt.json", "{}"): ("open RUN", "FOLDER/receipt.json cannot be read by this version of seatrial"),
    ("receipt.json", None): ("runs show RUN", "Run RUN has no receipt: receipt.json is missing"),
    ("plan.json", "no json"): ("runs exec RUN -- true", "FOLDER/plan.json cannot be read by this version of seatrial"),
}


@pytest.mark.parametrize("spoilt", SPOILT, ids=repr)
def test_a_record_that_is_spoilt(
    spoilt: tuple[str, str | None], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunStore(project).create(new_run_id(time.time()), None)
    result = {"target": "train.py", "backend": "local", "gpus": 0, "exit_code": 0, "outcome": "done", "seconds": 2.0}
    (run.folder / "summary.json").write_text(json.dumps(result))
    (name, text), (words, expected) = spoilt, SPOILT[spoilt]
    if text is not None:
        (run.folder / name).write_text(text)
    assert cli._main(words.replace("RUN", run.id).split()) in (2, 5)
    sentence, command = message(capsys)
    assert sentence.replace(str(run.folder), "FOLDER").replace(run.id, "RUN") == expected
    assert command.endswith(run.id) and "runs show" not in command  # not what has just been typed


@cases("words", "advice")
def test_a_run_whose_name_is_misspelt(
    words: str, advice: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunStore(project).create(new_run_id(time.time()), "second")
    assert cli._main(words.split()) == 2
    assert message(capsys)[1] == advice


def test_evidence_that_is_a_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunStore(project).create(new_run_id(time.time()), None)
    run.events_path.mkdir()
    assert cli._main(["runs", "verify", run.id]) == 1
    assert capsys.readouterr().out == f"{run.id} broken: {run.events_path} cannot be read: Is a directory\n"


def test_an_output_that_is_full_is_not_called_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    errors.report(OSError(28, "No space left on device"), ["runs", "ls"])
    assert "what the output goes to" in capfd.readouterr().err


def test_a_file_whose_name_has_a_blank_keeps_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    errors.report(UsageError("my nb.py:3: invalid syntax"), ["plan", "my nb.py"])
    assert "error: my nb.py:3" in capsys.readouterr().err


def test_ctrl_c_while_a_model_is_made_is_no_defect(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(argv: list[str]) -> int:
        raise SchemaError('Error building "model" validator:\n  KeyboardInterrupt: ')

    monkeypatch.setattr(cli, "_answer", interrupted)
    assert cli._main(["plan", "train.py"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_defect_of_ours_keeps_its_traceback_for_the_report(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("unheard of")

    monkeypatch.setattr("seatrial.runs.run_actions.prune", broken)
    assert cli._main(["runs", "prune", "--yes"]) == 5
    err = capsys.readouterr().err
    assert "Internal error: RuntimeError: unheard of" in err and ".traceback" in err


def test_a_script_elsewhere_is_run_from_its_folder_or_as_a_module(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pkg").mkdir()
    (project / "pkg/__init__.py").touch()
    (project / "pkg/b.py").write_text("from . import c\n")
    assert cli._main(["plan", "./pkg/b.py", "--gpus", "none", "--", "--k", "3"]) == 2
    assert message(capsys)[1] == "seatrial plan -m pkg.b --gpus none -- --k 3"
    (project / ".git").mkdir()
    monkeypatch.chdir(project / "pkg")
    for words in (["b.py"], ["-m", "b"]):
        assert cli._main(["plan", *words, "--gpus", "none", "--", "--k", "3"]) == 2
        assert message(capsys)[1] == "seatrial plan -m pkg.b --gpus none -- --k 3"
    (project / ".git").rmdir()
    monkeypatch.chdir(project / "folder")
    assert cli._main(["run", "../train.py", "--gpus", "none", "--", "--lr", "1"]) == 2
    assert message(capsys)[1] == "cd .. && seatrial run train.py --gpus none -- --lr 1"


@cases("typed", "run")
def test_without_gpus_is_the_users_own_command(typed: str, run: str) -> None:
    advice = "seatrial doctor    # or, to run on the CPU: seatrial run --gpus none …"
    assert errors.as_typed(advice, shlex.split(typed)) == f"seatrial doctor    # or, to run on the CPU: {run}"
    assert errors.as_typed("ls", ["run"]) == "ls" and errors.as_typed(None, ["run"]) is None
    behind = "seatrial run train.py --shm-size 8g -- --epochs 5"
    assert errors.as_typed("seatrial run … --shm-size 8g", ["run", "train.py", "--epochs", "5"]) == behind


def test_advice_for_a_sweep_has_its_own_words() -> None:
    typed = ["sweep", "a b.py", "--set", "lr=1,2", "--set", "bs=3", "--", "-x"]
    shown = errors.as_typed("seatrial sweep … --metric-from 'x[:=]+([.]+)'   # see", typed)
    assert shown == "seatrial sweep 'a b.py' --set lr=1,2 --set bs=3 --metric-from 'x[:=]+([.]+)' -- -x   # see"
    more = ["--set", "bs=3", "--shm-size", "8g", "--", "-x"]
    assert errors.as_typed("seatrial run … --shm-size 8g", typed) == shlex.join(["seatrial", *typed[:4], *more])
    assert errors.as_typed("seatrial sweep … --set lr=4", typed) == shlex.join(
        ["seatrial", "sweep", "a b.py", "--set", "bs=3", "--set", "lr=4", "--", "-x"]
    )


@pytest.mark.parametrize("words", [["-v", "./a b:/opt"], ["--mount=./a b:/opt:ro", "-v", "c:/x/opt"]], ids=str)
def test_the_fix_of_a_mount_that_hides_changes_its_target_alone(words: list[str]) -> None:
    error = UsageError("…", run="seatrial run … --mount x:/mnt/x", instead=(":/opt", [":/mnt/ab"]))
    kept = [word.replace("b:/opt", "b:/mnt/ab") for word in words]
    assert errors._advice(error, ["plan", "a.py", *words]) == shlex.join(["seatrial", "plan", "a.py", *kept])


def test_plan_of_a_local_run_is_printed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["plan", "train.py", "--on", "local", "--gpus", "none"]) == 0
    assert "train.py" in capsys.readouterr().out


def test_a_folder_without_runs_names_the_project_that_ran_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEATRIAL_STATE", str(tmp_path / "state"))
    for name, at in (("new", 2_000_000_000), ("old", 1_000_000_000)):
        (tmp_path / name).mkdir()
        store = RunStore(tmp_path / name)
        store.create("20261121-000000-bcdf", None)
        os.utime(store.places, (at, at))
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    assert cli._main(["runs", "ls"]) == 0
    assert capsys.readouterr().err == "No runs here. Another project's: seatrial runs ls -C ../new\n"


def test_plan_needs_no_state_folder_that_can_be_written(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "state").write_text("in the way of the folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    assert cli._main(["plan", "train.py", "--on", "local", "--gpus", "none"]) == 0
    assert "Would run train.py" in capsys.readouterr().out
