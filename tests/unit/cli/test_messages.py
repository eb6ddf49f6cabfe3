"""Messages for a user in trouble: one plain sentence and the next command."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from seatrial import cli
from seatrial.runs.store import RunStore, new_run_id

#: Words of the parser's inside, and of Python's.
INSIDE = ("Value error", "Input should", "(s)", "Traceback", "Internal error", "[Errno", "Choose from")

#: words → (the sentence, the next command).
REFUSED = {
    "runs ls --limit x": ("--limit: 'x' is not a valid integer range", "seatrial runs ls --help"),
    "runs ls --limit=-5": ("--limit: -5 is not in the range x>=0", "seatrial runs ls --help"),
    "runs ls --limit": ("--limit needs a value", "seatrial runs --help"),
    "runs ls --json=3": ("--json takes no value", "seatrial runs --help"),
    "runs ls a": ("Got unexpected extra argument (a)", "seatrial runs ls --help"),
    "gpus": ('Unknown command "gpus"; did you mean top?', "seatrial top"),
    "diff a b": ('Unknown command "diff"; did you mean runs compare?', "seatrial runs compare a b"),
    "runs diff a b": ('seatrial runs has no command "diff"; did you mean compare?', "seatrial runs compare a b"),
    "predict digits": ("The command predict was removed", "seatrial run predict -- digits"),
    "runs sho": ('seatrial runs has no command "sho"; did you mean show?', "seatrial runs show"),
    "top -i soon": ("--interval: 'soon' is not a valid float", "seatrial top --help"),
    "--completion tcsh": ("--completion needs a shell: bash, zsh or fish", "seatrial --completion bash"),
    "run predict -- digits": ("No trained digits model in models", "seatrial run digits"),
    "export x": ("--to is missing: onnx, pt2 or safetensors", "seatrial export x --to onnx"),
    "export x --to nope": (
        "--to nope: no such format; there are onnx, pt2, safetensors",
        "seatrial export last --to onnx",
    ),
    "runs stop": ("RUN is missing", "seatrial runs stop --help"),
    "runs stop last --all": ("A run and --all exclude each other", "seatrial runs stop --help"),
    "plan trainx.py": ("Script trainx.py not found in PROJECT; did you mean train.py?", "seatrial plan train.py"),
    "tune": (
        "Nothing to run: name a script, a recipe or -m module; here are train.py, two words.py",
        "seatrial tune train.py",
    ),
    "run train.py --epochs 5 --lr 1 --gpus none": (
        "No such option: --epochs",
        "seatrial run train.py --gpus none -- --epochs 5 --lr 1",
    ),
    "run --epochs 5 --gpus none train.py a": (
        "No such option: --epochs",
        "seatrial run --gpus none train.py -- --epochs 5 a",
    ),
    "run -m train --lr=1 a": ("No such option: --lr", "seatrial run -m train -- --lr=1 a"),
    "run --epochs 5": ("No such option: --epochs", "seatrial run TARGET -- --epochs 5"),
    "tune --fast digits --on local": ("No such option: --fast", "seatrial tune digits --on local -- --fast"),
    "plan train.py a b --gpus none": (
        '"a" is an unexpected argument: the target\'s own arguments go after --',
        "seatrial plan --gpus none train.py -- a b",
    ),
    "run -m train a b": (
        '"a" is an unexpected argument: the target\'s own arguments go after --',
        "seatrial run -m train -- a b",
    ),
    "run --on local two words.py 3": (
        "The file two words.py has a space in its name: put it in quotes",
        "seatrial run --on local 'two words.py' -- 3",
    ),
    "run python train.py --lr 1 --gpus none --on local": (
        "seatrial starts Python itself: name the script alone",
        "seatrial run --on local --gpus none train.py -- --lr 1",
    ),
    "run -- python train.py a": (
        "seatrial starts Python itself: name the script alone",
        "seatrial run train.py -- a",
    ),
    "run torchrun --nproc_per_node 4 train.py --gpus 2": (
        "seatrial starts the ranks itself: torchrun is a launcher, not a script",
        "seatrial run --gpus 2 train.py",
    ),
    "run launch.sh --gpus none --on local": (
        "launch.sh is a shell script, not Python",
        "seatrial run --gpus none --on local train.py",
    ),
    "plan lab.ipynb --gpus none": (
        "lab.ipynb is a notebook, not a script",
        "jupyter nbconvert --to script lab.ipynb && seatrial plan lab.py --gpus none",
    ),
    "run train.py --on Docker --gpus none": (
        "Unknown backend 'Docker'; available: auto, docker, podman, local, k8s",
        "seatrial run train.py --gpus none --on docker",
    ),
    "run train.py --on kubernetes": (
        "Unknown backend 'kubernetes'; available: auto, docker, podman, local, k8s",
        "seatrial run train.py --on k8s",
    ),
    "sweep train.py --on local": (
        "Nothing to sweep over: --set names it",
        "seatrial sweep train.py --on local --set batch_size=64,128",
    ),
    "--gpus none train.py": ("A command is missing before --gpus", "seatrial run --gpus none train.py"),
    "plan train.py --mount nowhere:/x": ("Mount nowhere: no such file or folder", "ls ."),
    "plan train.py --env-file no/file": ("Env file no/file: no such file or folder", "ls ."),
    "run mnist --gpus none --data folder": (
        "The recipe mnist needs MNIST's four IDX files: there are none in folder",
        "seatrial run --gpus none mnist -- --download   # fetches them into ./data; or: seatrial run mnist --data DIR",
    ),
    "run mnist --gpus none --data .": (
        "The recipe mnist needs MNIST's four IDX files: there are none in .",
        "seatrial run --gpus none mnist -- --download   # fetches them into ./data; or: seatrial run mnist --data DIR",
    ),
    "run spam --gpus none --data folder": (
        "The recipe spam needs SMSSpamCollection: there are none in folder",
        "seatrial run --gpus none spam --data DIR",
    ),
    "run -f job.yaml": ("job.yaml cannot be read: No such file or directory", "ls -ld job.yaml"),
    "up --plan --target h100": (
        "--target is not supported by up yet: it plans for this machine",
        "seatrial up --plan --gpus none",
    ),
    "up other.yaml": ("other.yaml is a file: --file names it", "seatrial up -f other.yaml"),
    "up -C /nowhere/here": ("Project folder not found: /nowhere/here", "ls /"),
    "runs ls -C /nowhere/here": ("Project folder not found: /nowhere/here", "ls /"),
    "open": ("There are no runs in this project yet", "seatrial run digits"),
    "explain /dev/zero": ("/dev/zero is a device, not a log", "seatrial explain train.log"),
    "doctor --report no/x.json": ("Cannot write no/x.json: folder no not found", "mkdir -p no"),
    "doctor --report folder": ("Cannot write folder: it is a folder", "ls -ld folder"),
}


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


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("runs show secnod", "seatrial runs show second"),
        ("open secnod", "seatrial open second"),
        ("runs rm secnod", "seatrial runs ls"),
        ("runs show nothing", "seatrial runs ls"),
    ],
)
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
