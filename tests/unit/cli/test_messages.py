"""Messages for a user in trouble: one plain sentence and the next command."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from seatrial import cli
from seatrial.runs.store import RunStore, new_run_id
from tables import cases, constant

#: Words of the parser's inside, and of Python's.
INSIDE = ("Value error", "Input should", "(s)", "Traceback", "Internal error", "[Errno", "Choose from")

#: words → (the sentence, the next command).
REFUSED = constant(__file__, "REFUSED")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "two words.py").touch()
    (tmp_path / "launch.sh").write_text("torchrun --nproc_per_node 4 train.py\n")
    (tmp_path / "lab.ipynb").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").touch()
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
def test_a_sentence_and_the_next_command(words: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(words.split()) in (2, 5)
    sentence, command = message(capsys)
    assert (sentence.replace(str(project), "PROJECT"), command) == REFUSED[words]
    assert not (project / ".seatrial").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["run", ""], "The target is empty"), (["run", "-m", ""], "-m '' is not a module's name")],
    ids=repr,
)
def test_nothing_between_quotes(
    words: list[str], sentence: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._main(words) == 2
    assert message(capsys)[0] == sentence


def test_runs_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: seatrial runs ") and err == ""


def test_data_that_is_there_is_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "folder" / "MNIST" / "raw").mkdir(parents=True)
    (project / "folder" / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").touch()
    from seatrial.images.recipes import require_data
    from seatrial.job.model import Target

    require_data(Target(kind="recipe", value="mnist"), project, folder=project / "folder", mounted=False)


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


def test_help_with_a_command_is_that_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["help", "runs", "ls"]) == 0
    assert capsys.readouterr().out.startswith("Usage: seatrial runs ls ")


def test_evidence_that_is_a_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunStore(project).create(new_run_id(time.time()), None)
    run.events_path.mkdir()
    assert cli._main(["runs", "verify", run.id]) == 1
    assert capsys.readouterr().out == f"{run.id} broken: {run.events_path} cannot be read: Is a directory\n"


def test_a_program_that_is_not_there_keeps_its_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from seatrial.cli import errors as problems
    from seatrial.errors import EngineUnavailableError
    from seatrial.system import command

    with pytest.raises(EngineUnavailableError) as result:
        command.check(["nowhere-to-be-found"], timeout_s=5)
    problems.report(result.value, ["runs", "exec"])
    sentence, fix = message(capsys)
    assert sentence.startswith('"nowhere-to-be-found" cannot be run') and "command -v nowhere-to-be-found" in fix


def test_an_output_that_is_full_is_not_called_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    from seatrial.cli import errors as problems

    problems.report(OSError(28, "No space left on device"), ["runs", "ls"])
    assert "what the output goes to" in capfd.readouterr().err


def test_ctrl_c_while_a_model_is_made_is_no_defect(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydantic_core import SchemaError

    def interrupted(argv: list[str]) -> int:
        raise SchemaError('Error building "model" validator:\n  KeyboardInterrupt: ')

    monkeypatch.setattr(cli, "_answer", interrupted)
    assert cli._main(["plan", "train.py"]) == 130
    assert capsys.readouterr().err == "stopped\n"
