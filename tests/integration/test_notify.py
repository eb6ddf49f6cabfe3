"""The end of a run reaches a command as JSON on its standard input, and no file."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project
from pace import until
from seatrial.runs import notify
from seatrial.runs.notify import NOTES

#: For so long that nobody waits for it, and for a time that no other process sleeps.
SLEEP = f"sleep 2970.{os.getpid()}"

RUN = ("run", "train.py", "--on", "local", "--gpus", "none")


class Posted:
    """A command that keeps the messages it gets, a line each."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.command = f"{{ cat; echo; }} >> {file}; true"

    @property
    def messages(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines if line]


@pytest.fixture
def posted(tmp_path: Path) -> Posted:
    return Posted(tmp_path / "posted.jsonl")


@pytest.fixture
def project(tmp_path: Path, environ: dict[str, str]) -> Iterator[Project]:
    made = Project(tmp_path / "told", "local", {**environ, "SEATRIAL_STATE": str(tmp_path / "state")})
    made.trusted = False
    made.write("seatrial.toml", "")
    made.write("train.py", "import sys; sys.exit(3)\n")
    yield made
    made.clean()


def record_of(project: Project) -> Path:
    return next((project.state / "projects").glob("*/runs/*"))


def noted(project: Project, lines: int = 1) -> list[str]:
    path = record_of(project) / NOTES
    return until(
        lambda: path.exists() and (printed := path.read_text().splitlines())[lines - 1 :] and printed, "a note"
    )


def test_command_gets_the_end_and_is_in_no_file(project: Project, posted: Posted) -> None:
    out = project.folder / "out.txt"
    command = f'TOKEN=S3CRET; echo "$SEATRIAL_OUTCOME $SEATRIAL_EXIT_CODE" > {out}; cat >> {out}'
    project.cli(*RUN, "--notify", posted.command, "--notify", command, exit_code=1)
    assert sorted(noted(project, 2)) == ["a command: done", "{ …: done"]
    (message,) = posted.messages
    assert message["text"] == message["content"] and message["text"].startswith("seatrial: train.py: failed: ")
    assert (message["outcome"], message["exit_code"], message["run"]) == ("failed", 1, record_of(project).name)
    first, reported = out.read_text().split("\n", 1)
    assert first == "failed 1" and json.loads(reported) == message
    assert not (record_of(project) / notify.REQUEST).exists()
    kept = [path for folder in (project.state, project.folder / ".seatrial") for path in folder.rglob("*")]
    texts = [path.read_bytes() for path in kept if path.is_file()]
    assert len(texts) > 8 and not any(b"S3CRET" in text for text in texts)
    assert "notified a command: done" in project.cli("runs", "show", "last", exit_code=1).stderr


def test_slow_or_failing_command_holds_up_and_fails_nothing(project: Project) -> None:
    project.write("train.py", "print('well')\n")
    assert "well" in project.cli(*RUN, "--notify", "echo gone wrong >&2; exit 7", "--notify", f"{SLEEP}; true").stdout
    os.kill(until(_sleeping, "the command"), signal.SIGTERM)
    assert noted(project, 2) == ["echo …: it exited with 7: gone wrong", "sleep …: done"]


def _sleeping() -> int | None:
    """Return the process of the command above, found by its argument."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == SLEEP.replace(" ", "\0").encode() + b"\0":
                return int(folder.name)
        except OSError:
            continue
    return None


@pytest.mark.parametrize("word", ["desktop", "https://chat.example.org/T0KEN"])
def test_retired_notification_is_refused_with_a_command(project: Project, word: str) -> None:
    refused = project.cli(*RUN, "--notify", word, exit_code=2).stderr
    assert "was removed: use a command, such as" in refused and "T0KEN" not in refused


def test_of_a_detached_run_too(project: Project, posted: Posted) -> None:
    project.write("train.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.1)\n")
    project.cli(*RUN, "-d", "--notify", posted.command)
    assert not posted.messages
    project.write("go", "")
    until(lambda: posted.messages or (project.cli("runs", "ls") and posted.messages), "the post")
    assert posted.messages[0]["exit_code"] == 0 and len(posted.messages) == 1


def test_a_strangers_file_runs_nothing_without_consent(project: Project) -> None:
    out = project.folder / "out.txt"
    project.write("seatrial.toml", f'[notify]\ncommand = "touch {out}"\n')
    refused = project.cli(*RUN, exit_code=2).stderr
    assert f"runs a command on this machine, as your user, when a run ends: touch {out}" in refused
    project.cli(*RUN, "--trust", exit_code=1)
    until(out.exists, "the command")


def test_no_module_of_the_project_is_run_on_this_machine(project: Project, posted: Posted) -> None:
    for module in ("click", "pydantic", "rich"):  # of ours alone: the target itself may import what it likes
        project.write(f"{module}.py", f"open({str(project.folder / 'ran')!r}, 'w')\n")
    project.write("train.py", "print('well')\n")
    started = "import sys; del sys.path[0]; from seatrial.cli import main; sys.exit(main())"
    project.program = [project.program[0], "-c", started]  # as the installed command
    project.cli(*RUN, "--notify", posted.command)
    until(lambda: posted.messages, "the post")
    assert not (project.folder / "ran").exists()


def test_a_tune_reports_its_end_as_a_run_does(project: Project, posted: Posted) -> None:
    project.write("train.py", "raise SystemExit('no data')\n")
    project.cli("tune", "train.py", "--on", "local", "--gpus", "none", "--notify", posted.command, exit_code=None)
    until(lambda: posted.messages, "the post")
    assert posted.messages[0]["kind"] == "run" and "train.py: failed: " in posted.messages[0]["text"]
