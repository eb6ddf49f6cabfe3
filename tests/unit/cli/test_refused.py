"""Impossible requests are refused as typed: exit code 2, one sentence, nothing done."""

import shlex
from pathlib import Path

import pytest

from seatrial import cli
from seatrial.cli.options import check_launcher
from seatrial.errors import TargetError

NAN = ["-1", "nan", "inf", "-inf", "1e999", "1e3", "0x10", "", " ", "9" * 5000]

#: No run can be called so.
NO_RUNS = ["", "-", "/", "a/b", "..", ".", "*", "a\nb", "\x1b[31m", "a b", "é", "x" * 64, "x" * 5000]
RUN_VERBS = ["show", "logs", "attach", "stop", "rm", "verify", "exec", "cp", "compare"]

#: (words before, words behind) a number.
NUMBERS = {
    "runs ls -n": (["runs", "ls", "-n"], []),
    "runs logs --tail": (["runs", "logs", "--tail"], []),
    "runs logs --rank": (["runs", "logs", "--rank"], []),
    "runs prune --keep": (["runs", "prune", "--keep"], []),
    "run --rank-of": (["run", "digits", "--rank-of"], []),
    "sweep --parallel": (["sweep", "digits", "--set", "a=1,2", "--parallel"], []),
    "top --interval": (["top", "--once", "--interval"], []),
    "metrics --interval": (["dashboard", "--metrics-only", "--interval"], []),
    "dashboard --interval": (["dashboard", "--interval"], []),
    "metrics --listen": (["dashboard", "--metrics-only", "--listen", "127.0.0.1:"], []),
    "dashboard --listen": (["dashboard", "--listen", "127.0.0.1:"], []),
    "plan --publish": (["plan", "digits", "--publish"], []),
    "plan --timeout": (["plan", "digits", "--timeout"], []),
    "plan --grace": (["plan", "digits", "--grace"], []),
    "plan --cpus": (["plan", "digits", "--cpus"], []),
    "plan --memory": (["plan", "digits", "--memory"], []),
    "plan --shm-size": (["plan", "digits", "--shm-size"], []),
    "plan --gpu-memory": (["plan", "digits", "--gpu-memory"], []),
    "plan --gpus": (["plan", "digits", "--gpus"], []),
    "plan --restarts": (["plan", "digits", "--restarts"], []),
    "doctor --shm-size": (["doctor", "--shm-size"], []),
}


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty project, which must be refused and leave nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        assert cli._main(list(words)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and "Traceback" not in err
        assert len(err.split("\n  cause: ")[0].split("\n  fix: ")[0].strip().splitlines()) == 1
        assert not any(ord(letter) < 32 and letter != "\n" for letter in err)
        assert not (tmp_path / ".seatrial").exists()
        return err

    return run


@pytest.mark.parametrize("reference", NO_RUNS, ids=repr)
@pytest.mark.parametrize("verb", RUN_VERBS)
def test_no_run(refused, verb, reference):
    behind = {"exec": ["--", "true"], "cp": ["out"], "compare": ["last"]}.get(verb, [])
    refused("runs", verb, reference, *behind)


@pytest.mark.parametrize("option", ["--image", "--container"])
def test_a_name_that_is_empty(refused, option):
    assert f"seatrial doctor {option} NAME" in refused("doctor", option, "")


@pytest.mark.parametrize("reference", NO_RUNS, ids=repr)
def test_nothing_to_resume(refused, reference):
    refused("run", "--resume", reference)


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number(refused, name):
    before, behind = NUMBERS[name]
    for value in NAN:
        if (name, value) in {("plan --cpus", "1e3"), ("top --interval", "1e3"), ("metrics --interval", "1e3")}:
            continue  # a number there
        words = [*before[:-1], before[-1] + value] if before[-1].endswith(":") else [*before, value]
        refused(*words, *behind)


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "digits", "--secret", "UNSET_ANYWHERE"],
        ["plan", "digits", "--name", "a/b"],
        ["plan", "digits", "--name", "a\nb"],
        ["plan", "digits", "--name", ""],
        ["plan", "digits", "--name=-x"],
        ["plan", "digits", "--env", "a/b"],
        ["plan", "digits", "--env", ""],
        ["plan", "digits", "--env", "=x"],
        ["plan", "digits", "--publish", "0:80"],
        ["plan", "digits", "--publish", "80:70000"],
        ["dashboard", "--listen", "a b:1"],
        ["dashboard", "--listen", "é" * 80 + ":1"],
        ["dashboard", "--listen", "\n:1"],
        ["dashboard", "--listen", ":٣"],
        ["runs", "rm", "last", ""],
        ["runs", "cp", ":x", "out"],
        ["runs", "compare", "", ""],
    ],
    ids=repr,
)
def test_no_word(refused, words):
    refused(*words)


@pytest.mark.parametrize("word", [b"\xff.py", b"a\xfeb", b"\xed\xa0\x80"])
def test_a_word_that_is_not_utf_8(refused, word):
    message = refused("run", word.decode("utf-8", "surrogateescape"))
    assert "not UTF-8" in message and "\\x" in message


def test_a_word_that_the_locale_has_no_letters_for(refused):
    assert "PYTHONUTF8=1" in refused("run", "é.py".encode().decode("ascii", "surrogateescape"))


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["mpirun", "-np", "4", "python", "train.py"], "seatrial run --gpus 4 train.py"),
        (["python3", "-u", "train.py", "--lr", "1"], "seatrial run train.py -- --lr 1"),
    ],
)
def test_the_command_that_others_start_it_with_is_given_in_seatrials_words(words: list[str], run: str) -> None:
    with pytest.raises(TargetError) as refused:
        check_launcher(words)
    assert refused.value.run == run


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("--gpus none python train.py", "run --gpus none train.py"),
        ("--strict --gpus=none python train.py", "run --strict --gpus=none train.py"),
        ("--on local -e A=1 torchrun --nproc_per_node 2 train.py", "run --on local -e A=1 --gpus 2 train.py"),
        ("--on local --gpus 8 mpirun -np 2 python train.py", "run --on local --gpus 2 train.py"),
        ("-e 'A=1 2' go.sh --on local --gpus none", "run -e 'A=1 2' --on local --gpus none train.py"),
        ("--on local --gpus none", "run --on local --gpus none train.py"),
        ("--on local trai.py", "run --on local train.py"),
        ("--on local other.sh", "run --image python:3.11-slim-bookworm -- bash other.sh"),
        ("--on local -m not-a-name", "run -m package.module --on local"),
        ("--image own:1 go.sh --on docker", "run --image own:1 --on docker train.py"),
        ("--on local python 'a&b #1.py' --lr 1", "run --on local 'a&b #1.py' -- --lr 1"),
        ("""--on local python "it's.py" """, """run --on local 'it'"'"'s.py'"""),
    ],
)
def test_the_command_to_type_keeps_the_options_that_were_typed(
    refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, run: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "go.sh").write_text("python train.py --lr 1\n")
    (tmp_path / "other.sh").write_text("ls\n")
    assert f"  fix: seatrial {run}\n" in refused("run", *shlex.split(typed))


def test_what_stands_behind_the_dashes_stays(refused) -> None:
    message = refused("plan", "--gpus", "none", "python", "t.py", "--", "--k", "1")
    assert "fix: seatrial plan --gpus none t.py -- --k 1" in message


@pytest.mark.parametrize("words", [["--name", "python", "train.py"], ["train.py", "python", "3"], ["python"]])
def test_what_is_called_python_otherwise_is_no_launcher(words: list[str]) -> None:
    check_launcher(words)


def test_the_command_for_what_needs_mpi_itself_can_be_typed(refused) -> None:
    assert "--image IMAGE -- mpirun …" in refused("plan", "mpirun", "-n", "2", "./x")
