"""Lines on a terminal and in a log while an image is built, when it exists, and when the build failed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from seatrial.images.build.progress import CACHED, READY
from seatrial.runs import launch

#: Lines as a build prints them, slowly enough that the line is drawn, then its end.
CHILD = """
import sys, time
from seatrial.cli import terminal as live_line
from seatrial.cli.screen import Screen
from seatrial.errors import ImageError
from seatrial.images.build import progress
progress._LOOK_EVERY_S, progress.EVERY_S, live_line.QUIET_S = 0.05, 0.3, 0.0
screen = Screen(whole="whole" in sys.argv, quiet="quiet" in sys.argv)
try:
    with screen.building() as line:
        if "cached" not in sys.argv:
            line("[base 4/4] RUN python3 -m venv /opt/venv")
            line("[framework 1/2] RUN --mount=type=bind,source=framework,target=/media pip install")
            line("  Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)")
            time.sleep(0.4)
        if "fails" in sys.argv:
            raise ImageError("no such package")
        line("image ready (cached)" if "cached" in sys.argv else "image ready: 1.4 GB, built in 41 s")
except ImageError as error:
    print("error:", error, file=sys.stderr)
"""


def in_a_log(*how: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", CHILD, *how], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def on_a_terminal(*how: str) -> str:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    argv: Sequence[str] = [sys.executable, "-c", CHILD, *how]
    child = subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # a job in the background draws nothing
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (more := os.read(ours, 65536))
        except OSError:  # Linux: the other end is closed
            break
        if not more:
            break
    os.close(ours)
    assert child.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def lines_left(shown: str) -> list[str]:
    """Return the lines that stay, without colours and overwritten text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    return [re.sub(r".*\r?\x1b\[K", "", line) for line in plain.rstrip("\n").split("\n")]


def test_on_a_terminal_one_line_changes_and_one_stays() -> None:
    shown = on_a_terminal()
    assert re.search(r"\r\x1b\[K\x1b\[2minstalling the framework with pip, 1 s: 1 package, 6.3 MB downloaded;", shown)
    assert lines_left(shown) == ["seatrial image ready: 1.4 GB, built in 41 s, 1 package, 6.3 MB downloaded"]


def test_an_image_that_is_there_is_one_line() -> None:
    assert lines_left(on_a_terminal("cached")) == in_a_log("cached") == ["seatrial image ready (cached)"]


def test_a_log_has_a_line_a_step_and_what_takes_long() -> None:
    assert in_a_log() == [
        "  creating the virtual environment",
        "  installing the framework with pip",
        "  installing the framework with pip, 1 s: 1 package, 6.3 MB downloaded; downloading sympy 1.14.0 (6.3 MB)",
        "seatrial image ready: 1.4 GB, built in 41 s, 1 package, 6.3 MB downloaded",
    ]


@pytest.mark.parametrize("show", [in_a_log, lambda *how: lines_left(on_a_terminal(*how))], ids=["log", "terminal"])
def test_a_build_that_fails_leaves_all_that_it_printed_above_the_error(show: object) -> None:
    assert callable(show)
    message = show("fails")
    assert message[-1] == "error: no such package"
    assert any(line.startswith("  [base 4/4] RUN python3 -m venv") for line in message)
    assert "    Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)" in message


def test_verbose_is_each_line_and_quiet_none() -> None:
    assert "    Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)" in in_a_log("whole")
    assert in_a_log("quiet") == []


def test_anyone_who_starts_many_runs_is_reported_of_builds_alone() -> None:
    message: list[str] = []
    say = launch.without_cached(message.append)
    for line in (CACHED, f"{READY}: 1 GB, built in 3 s", CACHED):
        say(line)
    assert message == [f"{READY}: 1 GB, built in 3 s"]
