"""Notifications for real: the end of a run reaches an HTTP server, a command and a desktop's program, and no file."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project
from seatrial import cli
from seatrial.cli.sweep import RUNNERS
from seatrial.errors import DiskError
from seatrial.runs import notify
from seatrial.runs.notified import NOTES
from seatrial.search.search import Search

#: For so long that nobody waits for it, and for a time that no other process sleeps.
SLEEP = "sleep 297.31"

RUN = ("run", "train.py", "--on", "local", "--gpus", "none")


class Server(ThreadingHTTPServer):
    """Keeps what is posted; answers with ``status``, on /moved with a redirect."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.status = 204
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, json.loads(body)))
        self.send_response(302 if self.path == "/moved" else self.server.status)
        if self.path == "/moved":
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def project(tmp_path: Path, environ: dict[str, str]) -> Iterator[Project]:
    made = Project(tmp_path / "told", "local", {**environ, "SEATRIAL_STATE": str(tmp_path / "state")})
    made.trusted = False
    made.write("seatrial.toml", "")
    made.write("train.py", "import sys; sys.exit(3)\n")
    yield made
    made.clean()


def until(there: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + 90
    while not (found := there()):
        assert time.monotonic() < end_s, f"{what} did not come"
        time.sleep(0.05)
    return found


def record_of(project: Project) -> Path:
    return next((project.state / "projects").glob("*/runs/*"))


SWEEP = ("sweep", "train.py", "--on", "local", "--gpus", "none", "--metric", "accuracy:max",
         "--metric-from", "accuracy=(.*)")  # fmt: skip

#: The setting is the accuracy; 0 fails.
TRIAL = """\
import os, sys
value = float(os.environ.get("LR") or sys.argv[-1])
print(f"accuracy={value}")
sys.exit(value == 0)
"""


def noted(project: Project, lines: int = 1) -> list[str]:
    path = record_of(project) / NOTES
    return until(lambda: path.exists() and (said := path.read_text().splitlines())[lines - 1 :] and said, "a note")


def test_the_end_is_posted_and_a_command_is_run_and_neither_is_in_the_plan(project: Project, server: Server) -> None:
    out = project.folder / "out.txt"
    command = f'TOKEN=S3CRET; echo "$SEATRIAL_OUTCOME $SEATRIAL_EXIT_CODE" > {out}; cat >> {out}'
    project.cli(*RUN, "--notify", f"{server.url}/T0KEN", "--notify", command, exit_code=1)
    assert sorted(noted(project, 2)) == ["a command: told", "http://127.0.0.1/…: told"]
    ((path, posted),) = server.posted
    assert path == "/T0KEN"
    assert posted["text"] == posted["content"] and posted["text"].startswith("seatrial: train.py: failed: ")
    assert (posted["outcome"], posted["exit_code"], posted["run"]) == ("failed", 1, record_of(project).name)
    first, told = out.read_text().split("\n", 1)
    assert first == "failed 1" and json.loads(told) == posted
    assert not (record_of(project) / notify.REQUEST).exists()
    kept = [path for folder in (project.state, project.folder / ".seatrial") for path in folder.rglob("*")]
    texts = [path.read_bytes() for path in kept if path.is_file()]
    assert len(texts) > 8 and not any(b"T0KEN" in text or b"S3CRET" in text for text in texts)
    shown = project.cli("runs", "show", "last", exit_code=1).stderr
    assert "notified http://127.0.0.1/…: told" in shown


def test_of_a_detached_run_too(project: Project, server: Server) -> None:
    project.write("train.py", "import time; time.sleep(1)\n")
    project.cli(*RUN, "-d", "--notify", server.url)
    assert not server.posted
    until(lambda: server.posted or (project.cli("runs", "ls") and server.posted), "the post")
    assert server.posted[0][1]["exit_code"] == 0 and len(server.posted) == 1


def test_whoever_does_not_answer_holds_up_and_fails_nothing(project: Project, server: Server) -> None:
    server.status = 403
    project.write("train.py", "print('well')\n")
    words = ("--notify", f"{server.url}/moved", "--notify", server.url, "--notify", f"{SLEEP}; true")
    began_s = time.monotonic()
    done = project.cli(*RUN, *words, "--notify", "echo gone wrong >&2; exit 7")
    assert time.monotonic() - began_s < 30 and "well" in done.stdout
    os.kill(until(_sleeping, "the command"), signal.SIGTERM)
    assert noted(project, 4) == [
        "http://127.0.0.1/…: it answered 302 Found",
        "http://127.0.0.1/…: it answered 403 Forbidden",
        "sleep …: told",
        "echo …: it exited with 7: gone wrong",
    ]
    assert [path for path, _ in server.posted] == ["/moved", "/"]


def _sleeping() -> int | None:
    """The command of the test above, by its argument."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == SLEEP.replace(" ", "\0").encode() + b"\0":
                return int(folder.name)
        except OSError:
            continue
    return None


def test_a_strangers_file_runs_nothing_without_consent(project: Project, server: Server) -> None:
    out = project.folder / "out.txt"
    project.write("seatrial.toml", f'[notify]\ncommand = "touch {out}"\nwebhook = "{server.url}/x"\n')
    refused = project.cli(*RUN, exit_code=2).stderr
    assert f"runs a command on this machine, as your user, when a run ends: touch {out}" in refused
    assert "posts the end of each run to http://127.0.0.1/…" in refused
    project.cli(*RUN, "--trust", exit_code=1)
    until(out.exists, "the command")
    until(lambda: server.posted, "the post")


def test_a_desktop_gets_title_and_text_and_one_that_is_missing_is_chunk_times_once(
    project: Project, tmp_path: Path
) -> None:
    without = project.cli(*RUN, "--notify", "desktop", exit_code=1, PATH=str(tmp_path / "nothing")).stderr
    assert "--notify desktop will show nothing here: neither notify-send nor osascript is installed" in without
    project.cli("runs", "rm", "last")
    program = tmp_path / "bin" / "notify-send"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    project.write("train.py", "raise ValueError('<b>')\n")
    project.cli(*RUN, "--notify", "desktop", exit_code=1, PATH=f"{program.parent}:/usr/bin:/bin",
                DBUS_SESSION_BUS_ADDRESS="unix:path=/nowhere")  # fmt: skip
    shown = until(lambda: (tmp_path / "shown").exists() and (tmp_path / "shown").read_text(), "the notification")
    assert shown.splitlines()[:4] == ["--app-name", "seatrial", "--", "seatrial"]
    assert "train.py: failed: " in shown and "ValueError: &lt;b&gt;" in shown


def test_no_module_of_the_project_is_run_on_this_machine(project: Project, server: Server) -> None:
    for module in ("typer", "pydantic", "rich"):  # of ours alone: the target itself may import what it likes
        project.write(f"{module}.py", f"open({str(project.folder / 'ran')!r}, 'w')\n")
    project.write("train.py", "print('well')\n")
    started = "import sys; del sys.path[0]; from seatrial.cli import main; sys.exit(main())"
    project.program = [project.program[0], "-c", started]  # as the installed command
    project.cli(*RUN, "--notify", server.url)
    until(lambda: server.posted, "the post")
    assert not (project.folder / "ran").exists()


def test_the_end_of_a_sweep_is_told_once_and_says_what_came_of_it(project: Project, server: Server) -> None:
    out = project.folder / "out.txt"
    project.write("train.py", TRIAL)
    project.write("seatrial.toml", f'[notify]\nwebhook = "{server.url}/file"\n')  # the flags replace it
    command = f'echo "$SEATRIAL_KIND $SEATRIAL_RUN_ID $SEATRIAL_OUTCOME $SEATRIAL_EXIT_CODE" > {out}.part; \
        cat "$SEATRIAL_RECEIPT" >> {out}.part; mv {out}.part {out}'
    project.cli(*SWEEP, "--set", "lr=0.5,0.75,0", "--study", "mine", "--notify", f"{server.url}/S3CRET",
                "--notify", command)  # fmt: skip
    until(lambda: server.posted and out.exists(), "the end")
    ((path, posted),) = server.posted
    assert path == "/S3CRET"
    assert posted["text"] == "seatrial: sweep mine: 3 trials, best accuracy 0.75 (trial 1), 1 failed"
    assert (posted["kind"], posted["outcome"], posted["exit_code"], posted["run"]) == ("sweep", "done", 0, None)
    first, results = out.read_text().split("\n", 1)
    assert first == "sweep mine done 0" and [trial["value"] for trial in json.loads(results)] == [0.5, 0.75, 0.0]
    kept = [path for folder in (project.state, project.folder / ".seatrial") for path in folder.rglob("*")]
    assert not any(b"S3CRET" in path.read_bytes() for path in kept if path.is_file())

    project.cli("sweep", "--resume", "mine", "--trust")  # now the file counts, once it is allowed
    until(lambda: server.posted[1:], "the file's")
    assert server.posted[1][0] == "/file" and len(server.posted) == 2


def test_a_sweep_that_cannot_go_on_says_why(project: Project, server: Server) -> None:
    project.write("train.py", "import os\nprint('nothing to see', os.environ['LR'])\n")
    project.cli(*SWEEP, "--set", "lr=1,2", "--notify", server.url, exit_code=None)
    until(lambda: server.posted, "the post")
    posted = server.posted[0][1]
    assert posted["outcome"] == "failed" and posted["exit_code"] != 0
    assert ": failed: " in posted["text"] and posted["text"].endswith("1 of 2 trials, 1 failed")


def test_a_sweep_that_breaks_off_is_told(
    project: Project, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(search: Search) -> None:
        raise DiskError("The disk is full", run="df -h")

    project.write("train.py", TRIAL)
    monkeypatch.setitem(RUNNERS, "local", full)
    monkeypatch.setenv("SEATRIAL_STATE", str(project.state))
    code = cli._main([*SWEEP, "--set", "lr=1,2", "--study", "mine", "--notify", server.url, "-C", str(project.folder)])
    assert code == 5 and "The disk is full" in capsys.readouterr().err
    until(lambda: server.posted, "the post")
    posted = server.posted[0][1]
    assert (
        posted["text"] == "seatrial: sweep mine: failed: The disk is full; 0 of 2 trials" and posted["exit_code"] == 5
    )


@pytest.mark.docker
@pytest.mark.slow
def test_the_end_of_an_up_is_posted_once_and_names_the_service_that_failed(
    docker_project: Project, server: Server
) -> None:
    project = docker_project
    image = "{image: python:3.11-slim-bookworm, command: python -c 'raise SystemExit(%d)'}"
    project.write("compose.yaml", f"services:\n  first: {image % 0}\n  second: {image % 1}\n")
    project.cli("up", "--trust", "--notify", f"{server.url}/all", exit_code=1, timeout_s=200)
    until(lambda: server.posted, "the post")
    posted = dict(server.posted)["/all"]
    assert (posted["kind"], posted["outcome"], posted["exit_code"]) == ("compose", "failed", 1)
    assert ": 2 services: failed in " in posted["text"] and "1 done, 1 failed; second: " in posted["text"]


def test_a_tune_tells_its_end_as_a_run_does(project: Project, server: Server) -> None:
    project.write("train.py", "raise SystemExit('no data')\n")
    project.cli("tune", "train.py", "--on", "local", "--gpus", "none", "--notify", server.url, exit_code=None)
    until(lambda: server.posted, "the post")
    assert server.posted[0][1]["kind"] == "run" and "train.py: failed: " in server.posted[0][1]["text"]
