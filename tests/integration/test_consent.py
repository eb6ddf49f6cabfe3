"""Consent for real: the command line in processes of its own, on a terminal and without one."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project
from terminal import Terminal

#: Unused without GPUs and containers, so that the test needs neither; consent is required all the same.
WISHES = 'gpus = "none"\nsecrets = ["GREETING"]\n'
SCRIPT = "import os\nprint('hello', os.environ.get('GREETING'))\n"
QUESTION = "Allow this?"


@pytest.fixture
def stranger(tmp_path: Path, environ: dict[str, str]) -> Iterator[Project]:
    """A project whose file asks for a variable, with a state folder of its own; nothing is allowed yet."""
    settings = {**environ, "SEATRIAL_STATE": str(tmp_path / "state"), "GREETING": "sesame-street"}
    # prune would find, and delete, what this machine's engines hold of other projects
    settings |= {"SEATRIAL_DOCKER": "/nowhere/docker", "SEATRIAL_PODMAN": "/nowhere/podman"}
    made = Project(tmp_path / "stranger", "local", settings)
    made.trusted = False
    made.write("seatrial.toml", WISHES)
    made.write("train.py", SCRIPT)
    yield made
    made.clean()


def on_a_terminal(project: Project, *words: str, typed: str, question: str = QUESTION) -> tuple[int, str]:
    """(exit code, what was shown) of a command on a pty; ``typed`` when it asks.

    It is typed again when nothing follows: Python's ``input`` drops a Ctrl-C that comes while it flushes the question.
    """
    terminal = Terminal(project.argv(*words), cwd=project.folder, env=project.environ)
    answered, end_s = False, time.monotonic() + 60
    while (more := terminal.read(3.0)) is not None and time.monotonic() < end_s:
        if question.encode() in terminal.shown and not (answered and more):
            answered = True
            terminal.type(typed.encode())
    code = terminal.end(10)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown.decode())
    return code, plain.replace("\r\n", "\n")


RUN = ("run", "train.py", "--on", "local")


def test_requested_once_and_again_when_a_line_changes(stranger: Project) -> None:
    code, shown = on_a_terminal(stranger, *RUN, typed="y\n")
    assert code == 0 and "hello [redacted]" in shown
    assert shown.index("This project asks for\n  gives the target your variable GREETING\n") < shown.index(QUESTION)
    assert QUESTION not in on_a_terminal(stranger, *RUN, typed="")[1]
    assert stranger.cli(*RUN).stdout.startswith("hello")  # nor without a terminal

    stranger.write("train.py", SCRIPT + "open('seatrial.toml', 'a').write('network = \"host\"\\n')\n")
    stranger.cli(*RUN)  # it plants a wish for the next run
    refused = stranger.cli(*RUN, exit_code=2)
    assert "uses this machine's network" in refused.stderr and "hello" not in refused.stdout


@pytest.mark.parametrize("typed", ["n\n", "\n"], ids=["no", "return alone"])
def test_no_is_the_default_and_is_not_remembered(stranger: Project, typed: str) -> None:
    code, shown = on_a_terminal(stranger, *RUN, typed=typed)
    assert code == 2 and "requested permissions were denied" in shown and "hello" not in shown
    assert stranger.runs == []
    assert QUESTION in on_a_terminal(stranger, *RUN, typed="n\n")[1]


@pytest.mark.parametrize("typed", ["\x04", "\x03"], ids=["end of input", "ctrl-c"])
def test_to_leave_the_question_is_no(stranger: Project, typed: str) -> None:
    code, shown = on_a_terminal(stranger, *RUN, typed=typed)
    assert code == 130 and "Traceback" not in shown and stranger.runs == []


@pytest.mark.parametrize(
    "words",
    [
        RUN,
        (*RUN, "--detach"),
        ("shell", "train.py", "--on", "local"),
        ("sweep", "train.py", "--on", "local", "--set", "lr=1,2"),
        ("run", "--on", "local", "bench", "--", "train", "digits", "--compare", "eager"),
    ],
    ids=lambda words: " ".join(words),
)
def test_every_verb_that_would_act_on_it_refuses_without_a_terminal(stranger: Project, words: tuple[str, ...]) -> None:
    refused = stranger.cli(*words, exit_code=2)
    assert refused.stdout == "" and stranger.runs == []
    assert "gives the target your variable GREETING" in refused.stderr
    assert f"fix: seatrial {words[0]}" in refused.stderr
    assert not (Path(stranger.environ["SEATRIAL_STATE"]) / "trust.json").exists()


def test_the_next_command_is_the_one_typed_with_trust(stranger: Project) -> None:
    refused = stranger.cli(*RUN, "--", "--epochs", "a b", exit_code=2).stderr
    assert "  fix: seatrial run train.py --on local --trust -- --epochs 'a b'\n" in refused


def test_trust_allows_and_remembers(stranger: Project) -> None:
    assert "hello" in stranger.cli(*RUN, "--trust").stdout
    assert "hello" in stranger.cli(*RUN).stdout
    file = Path(stranger.environ["SEATRIAL_STATE"]) / "trust.json"
    assert file.stat().st_mode & 0o777 == 0o600
    [entry] = json.loads(file.read_text())["allowed"].values()
    assert entry["project"] == str(stranger.folder)


def test_another_project_with_the_same_file_is_requested_itself(stranger: Project, tmp_path: Path) -> None:
    stranger.cli(*RUN, "--trust")
    stranger.folder = stranger.folder.rename(tmp_path / "moved")
    stranger.cli(*RUN, exit_code=2)


def test_an_ordinary_project_needs_no_state_of_trust(stranger: Project) -> None:
    stranger.write("seatrial.toml", 'gpus = "none"\ntimeout = "1h"\n')
    assert "hello sesame-street" in stranger.cli(*RUN).stdout
    assert QUESTION not in on_a_terminal(stranger, *RUN, typed="")[1]
    assert not (Path(stranger.environ["SEATRIAL_STATE"]) / "trust.json").exists()


def test_what_is_typed_is_never_confirmed(stranger: Project) -> None:
    stranger.write("seatrial.toml", 'gpus = "none"\n')
    assert "hello [redacted]" in stranger.cli(*RUN, "--secret", "GREETING").stdout


def test_plan_lists_asks_nothing_and_runs_nothing_of_the_project(stranger: Project) -> None:
    stranger.write("seatrial.toml", WISHES + 'on = "local"\n')
    for module in ("csv", "zipfile", "email", "importlib"):  # what Python itself would import from here
        stranger.write(f"{module}.py", "open('ran', 'w')\n")
    stranger.write("pip/__main__.py", "open('ran', 'w')\n")
    stranger.write("train.py", "import not_there_at_all\n")
    started = "import sys; del sys.path[0]; from seatrial.cli import main; sys.exit(main())"
    stranger.program = [
        stranger.program[0],
        "-c",
        started,
    ]  # as the installed command, which looks not here for modules
    planned = stranger.cli("plan", "train.py")
    wishes = "This project asks for\n  runs on this machine without a container, as your user\n"
    assert wishes + "  gives the target your variable GREETING\n" in planned.stdout
    plan = json.loads(stranger.cli("plan", "train.py", "--json").stdout)
    assert plan["job"]["asks"][0]["words"] == "runs on this machine without a container, as your user"
    assert not (stranger.folder / "ran").exists()


def test_build_asks_only_for_what_a_build_does(stranger: Project) -> None:
    stranger.write("seatrial.toml", WISHES + '[image]\nready = "localhost:1/none"\n')
    words = ("build", "train.py", "--on", "local")
    assert "Nothing to build" in stranger.cli(*words, exit_code=2).stderr
    stranger.write("seatrial.toml", WISHES + '[image]\nready = "localhost:1/none"\nbuild_network = "host"\n')
    assert (
        "builds the image on this machine's" in stranger.cli("build", "train.py", "--on", "local", exit_code=2).stderr
    )


def test_a_resumed_run_may_not_bring_more_than_was_allowed(stranger: Project) -> None:
    stranger.cli(*RUN, "--trust", "--name", "first")
    stranger.cli("run", "--resume", "first")
    stranger.write("seatrial.toml", WISHES + 'devices = ["/dev/mem"]\n')
    refused = stranger.cli("run", "--resume", "first", exit_code=2).stderr
    assert "gives the target the device /dev/mem" in refused


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_memory_that_cannot_be_read_is_reported_and_requested_again(stranger: Project, kind: str) -> None:
    stranger.cli(*RUN, "--trust")
    file = Path(stranger.environ["SEATRIAL_STATE"]) / "trust.json"
    file.unlink()
    os.mkfifo(file) if kind == "fifo" else file.mkdir()
    refused = stranger.cli(*RUN, exit_code=2).stderr
    assert "trust.json is not a" in refused and "gives the target your variable GREETING" in refused
    allowed = stranger.cli(*RUN, "--trust")
    assert "hello" in allowed.stdout and ("your answer was not saved" in allowed.stderr) == (kind == "folder")


def test_prune_asks_on_a_terminal(stranger: Project) -> None:
    (stranger.folder / "seatrial.toml").unlink()
    stranger.cli(*RUN)
    asks = "Delete this?"
    code, shown = on_a_terminal(stranger, "runs", "prune", typed="\n", question=asks)
    assert code == 0 and shown.index("would remove 1 run, ") < shown.index(asks) < shown.index("nothing was removed")
    assert len(stranger.runs) == 1
    code, shown = on_a_terminal(stranger, "runs", "prune", typed="y\n", question=asks)
    assert code == 0 and "\nremoved 1 run, " in shown and stranger.runs == []
    assert (
        asks not in on_a_terminal(stranger, "runs", "prune", typed="", question=asks)[1]
    )  # there is nothing to delete


def test_prune_that_need_not_ask(stranger: Project) -> None:
    (stranger.folder / "seatrial.toml").unlink()
    for words in (("--dry-run",), ("--yes",)):
        stranger.cli(*RUN)
        refused = stranger.cli("runs", "prune", "--keep", "0", "--all", exit_code=2).stderr  # no terminal, no answer
        assert "needs a terminal" in refused and "fix: seatrial runs prune --all --yes" in refused and stranger.runs
        assert (
            "Delete this?" not in on_a_terminal(stranger, "runs", "prune", *words, typed="", question="Delete this?")[1]
        )
    assert stranger.runs == []
