"""The ``fix:`` of an error is a command: the shell takes it, and where it is ours, our own parser does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from seatrial import cli
from seatrial.cli.options import command_of
from seatrial.findings.catalogue import entries
from seatrial.findings.own_words import with_own_words

#: Words of the shell itself.
BUILTIN = {"cd", "export", "unset", "read", "ulimit"}

#: Not of a command to type: a change to a file, or a sentence.
_PROSE = re.compile(r"(in|the|or|a|set|add|upgrade|remove|change|name|rename|free|pass|use) ", re.IGNORECASE)


def commands(fix: str) -> list[list[str]]:
    """The words of each command in a fix, as bash would split them. Fails for what bash does not take."""
    checked = subprocess.run(["bash", "-n", "-c", fix], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{fix}: {checked.stderr}"
    lexer = shlex.shlex(fix, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def is_taken(words: list[str]) -> None:
    """A command of ours parses; another is a program, or could be one."""
    while "=" in words[0] or words[0] == "sudo":
        words = words[1:]
    if words[0] != "seatrial":
        assert words[0] in BUILTIN or re.fullmatch(r"[\w./${}:-]+", words[0]), words
        return
    if words[1] in ("--help", "--version", "--completion"):
        return
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    command = command_of(words[1:2])
    assert command is not None, words
    if isinstance(command, click.Group) and ours and not ours[0].startswith("-"):
        command, ours = command.commands[ours[0]], ours[1:]
    if "--help" not in ours:
        command.make_context("seatrial", list(ours), obj=[])


@pytest.fixture
def fix(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def fail(*words: str) -> str:
        assert cli._main(list(words)) != 0, words
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if line.startswith("  fix: ")]
        assert lines, error
        return lines[0].removeprefix("  fix: ")

    return fail


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mein projekt ü (1)"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "empty data").mkdir()
    (folder / "train me.py").write_text("print(1)")
    (folder / "broken 'quote.py").write_text("def (:\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n\xff\xfe")
    (folder / "note book.ipynb").write_text("{}")
    (folder / "start me.sh").write_text("echo")
    monkeypatch.chdir(folder)
    return folder


ERRORS = [
    ("run",),
    ("run", "no such.py"),
    ("run", "train me.py", "more words", "it's", "--gpus", "none"),
    ("run", "broken 'quote.py"),
    ("run", "latin.py"),
    ("run", "note book.ipynb"),
    ("run", "start me.sh"),
    ("run", "sub dir"),
    ("run", "../elsewhere/train.py"),
    ("run", "train me.py", "--no-such-flag", "--gpus", "none"),
    ("run", "train me.py", "--gpus", "many"),
    ("run", "train me.py", "--memory", "1XB"),
    ("run", "train me.py", "--data", "no data"),
    ("run", "digits", "--data", "empty data"),
    ("run", "train me.py", "--models", "train me.py"),
    ("run", "train me.py", "--on", "local", "--gpus", "none", "--mount", "a b:/c"),
    ("run", "train me.py", "--on", "local", "--gpus", "none", "--memory", "1GB"),
    ("run", "train me.py", "--on", "local", "--gpus", "none", "--env-file", "no file"),
    ("run", "train me.py", "--on", "local", "--gpus", "none", "--gpu-memory", "1GB", "--", "--epochs", "5"),
    ("run", "train me.py", "--secret", "NO_SUCH_SECRET"),
    ("run", "train me.py", "-i", "-d"),
    ("run", "--resume", "nothing"),
    ("run", "train me.py", "--publish", "x"),
    ("runs", "show", "nothing"),
    ("runs", "logs", "a b"),
    ("runs", "exec", "last"),
    ("run", "predict", "--", "no model.pth", "text"),
    ("plan", "train me.py", "--timeout", "soon"),
    ("top", "--sort", "no such"),
    ("dashboard", "--print-config", "no such"),
    ("-C", "x"),
    ("rnu",),
    ("train me.py",),
]


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_the_fix_of_an_error(fix: Callable[..., str], project: Path, words: tuple[str, ...]) -> None:
    advice = fix(*words)
    if _PROSE.match(advice):
        assert "seatrial run" not in advice
        return
    for command in commands(advice):
        is_taken(command)


def test_a_path_is_the_one_to_type_from_here(
    fix: Callable[..., str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = fix("run", "latin.py")
    [[*_, path]] = commands(advice)
    assert path == "latin.py"
    monkeypatch.chdir("sub dir")
    [[*_, path]] = commands(fix("run", "latin.py", "-C", ".."))
    assert Path(path).samefile("../latin.py")


CATALOGUE = [(entry.id, entry.fix) for entry in entries() if entry.fix.startswith("seatrial ")]


@pytest.mark.parametrize("advice", [fix for _, fix in CATALOGUE], ids=[id for id, _ in CATALOGUE])
def test_the_fix_of_a_known_failure(advice: str) -> None:
    """With the user's own words in it, as receipts and errors show it."""
    advice = with_own_words(re.sub(r"\{\w+\}", "2", advice), ["train me.py", "--gpus", "1"], ["--", "--epochs", "5"])
    advice = re.sub(r"<[\w-]+>", "X", advice)
    for command in commands(advice):
        if "…" not in command:
            is_taken(command)


@pytest.mark.parametrize(
    ("advice", "shown"),
    [
        ("seatrial run --shm-size 8g …", "seatrial run --shm-size 8g 'a b.py' --gpus 1 -- -x"),
        ("seatrial run … --slim unused   # or", "seatrial run 'a b.py' --gpus 1 --slim unused -- -x   # or"),
        ("seatrial run --gpus all …", "seatrial run --gpus all 'a b.py' -- -x"),
        ("seatrial plan … && ls", "seatrial plan 'a b.py' --gpus 1 -- -x && ls"),
        ("seatrial run … without --gpu-memory", "seatrial run … without --gpu-memory"),
        ("seatrial run …   # without --gpus", "seatrial run 'a b.py' -- -x   # without --gpus"),
        ("seatrial run --env B=2 …", "seatrial run --env B=2 'a b.py' --gpus 1 -- -x"),
        ("echo yes | seatrial run …", "echo yes | seatrial run 'a b.py' --gpus 1 -- -x"),
        ("seatrial run … -- --lr VALUE   # or", "seatrial run 'a b.py' --gpus 1 -- -x --lr VALUE   # or"),
        ("seatrial run … -- --gpus VALUE", "seatrial run 'a b.py' --gpus 1 -- -x --gpus VALUE"),
        ("seatrial runs show RUN", "seatrial runs show RUN"),
    ],
)
def test_own_words(advice: str, shown: str) -> None:
    assert with_own_words(advice, ["a b.py", "--gpus", "1"], ["--", "-x"]) == shown


def test_an_option_that_may_be_given_twice_stays() -> None:
    own = ["a.py", "--env", "A=1", "-e", "C=3"]
    assert with_own_words("seatrial run --env B=2 …", own, []) == "seatrial run --env B=2 a.py --env A=1 -e C=3"


def test_a_variable_that_the_advice_sets_is_not_set_twice() -> None:
    own = ["a.py", "--env", "A=1", "-e", "B=3"]
    assert with_own_words("seatrial run … --env B=2", own, []) == "seatrial run a.py --env A=1 --env B=2"


def test_arguments_of_the_script_that_the_advice_has() -> None:
    own, arguments = ["a.py"], ["--", "x", "--lr", "1"]
    assert with_own_words("seatrial run … -- --help", own, arguments) == "seatrial run a.py -- --help"
    assert with_own_words("seatrial run … -- --data D", own, arguments) == "seatrial run a.py -- x --lr 1 --data D"
    assert with_own_words("seatrial run … -- --data D", own, []) == "seatrial run a.py -- --data D"


def test_which_of_two_is_intended_is_not_guessed() -> None:
    advice = "seatrial run --mount a:/mnt/a …"
    assert with_own_words(advice, ["a.py", "--mount", "a:/x", "--mount", "b:/y"], []) == advice


assert shutil.which("bash")
