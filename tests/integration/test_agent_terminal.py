"""The agent with a terminal, or with input, for its target: what tests of the whole command line are too slow for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_process import FLOOR, Agent
from seatrial import frames
from seatrial.frames import encode_input, encode_size

TERMINAL = {"columns": 101, "lines": 33, "streams": [0, 1, 2], "term": "xterm"}

pythons = pytest.mark.parametrize("python", [sys.executable, *([FLOOR] if FLOOR else [])])


class Typing:
    """An agent started with a pipe for its target's input."""

    def __init__(self, folder: Path, script: str, python: str = sys.executable, **plan: object) -> None:
        self.path = folder / "input"
        os.mkfifo(self.path)
        self.agent = Agent(folder, script, python, input=str(self.path), **plan)
        self.process = subprocess.Popen(self.agent.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pipe = os.open(self.path, os.O_WRONLY)

    def write(self, message: bytes) -> None:
        os.write(self.pipe, message)

    def end(self) -> int:
        """No more input; the agent's exit code."""
        os.close(self.pipe)
        self.process.communicate(timeout=300)
        return self.process.returncode


@pythons
def test_a_terminal_has_a_size_takes_keys_and_keeps_the_streams_apart(tmp_path: Path, python: str) -> None:
    script = """
import os, sys
print([os.isatty(number) for number in (0, 1, 2)], os.get_terminal_size(), os.environ["TERM"], flush=True)
os.system("stty size")
print("asked", flush=True)
with open("/dev/tty") as terminal:
    print("hello", repr(terminal.readline()), flush=True)
print("error", file=sys.stderr, flush=True)
input()
print(tuple(os.get_terminal_size()))
sys.exit(7)
"""
    typing = Typing(tmp_path, script, python, terminal=TERMINAL)
    typing.agent.wait_for_output("asked")
    typing.write(encode_input(b"Bob\r"))
    typing.agent.wait_for_output("hello")
    typing.write(encode_size(10, 60) + encode_input(b"\r"))
    assert typing.end() == 7 and typing.agent.exited()["exit_code"] == 7
    log = typing.agent.log("stdout.log").decode()
    assert log.splitlines() == [
        "[True, True, True] os.terminal_size(columns=101, lines=33) xterm",
        "33 101",
        "asked",
        "Bob",  # as the terminal echoes it
        "hello 'Bob\\n'",
        "",
        "(60, 10)",
    ]
    assert "\r" not in log  # the terminal that shows it adds its own
    assert typing.agent.log("stderr.log") == b"error\n"


def test_a_secret_typed_or_printed_is_in_no_log(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "TOKEN").write_text("hunter2hunter2")
    script = "import os; print('ready', flush=True); print('got', input('> ')); print(os.environ['TOKEN'])"
    typing = Typing(tmp_path, script, terminal=TERMINAL, secrets=["TOKEN"], secrets_dir=str(secrets))
    typing.agent.wait_for_output("ready")
    typing.write(encode_input(b"hunter2"))
    typing.write(encode_input(b"hunter2\r"))
    assert typing.end() == 0
    both = typing.agent.log("stdout.log") + typing.agent.log("stderr.log")
    assert b"hunter2hunter2" not in both and both.count(b"[redacted]") == 3


def test_who_looks_on_and_leaves_ends_the_input_not_the_run(tmp_path: Path) -> None:
    script = """
print("ready", flush=True)
try:
    input()
except EOFError:
    print("nobody types")
"""
    typing = Typing(tmp_path, script, terminal=TERMINAL)
    typing.agent.wait_for_output("ready")
    assert typing.end() == 0 and b"nobody types" in typing.agent.log("stdout.log")


def test_output_alone_on_a_terminal_has_no_keyboard(tmp_path: Path) -> None:
    script = """
import os
print([os.isatty(number) for number in (0, 1, 2)], repr(os.read(0, 9)))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError:
    print("no /dev/tty")
"""
    agent = Agent(tmp_path, script, terminal={**TERMINAL, "streams": [1]})
    assert agent.run().returncode == 0
    assert agent.log("stdout.log") == b"[False, True, False] b''\nno /dev/tty\n"


@pythons
def test_a_pipe_comes_whole_and_ends(tmp_path: Path, python: str) -> None:
    typing = Typing(tmp_path, "import sys; print(sum(map(len, sys.stdin.buffer)), sys.stdin.isatty())", python)
    for _ in range(100):
        typing.write(encode_input(b"x" * 32 * 1024))
    assert typing.end() == 0 and typing.agent.log("stdout.log") == b"3276800 False\n"


def test_a_target_that_reads_nothing_ends_and_takes_little(tmp_path: Path) -> None:
    typing = Typing(tmp_path, "import time; time.sleep(1)")
    os.set_blocking(typing.pipe, False)
    taken, deadline_s = 0, time.monotonic() + 120
    with pytest.raises(BrokenPipeError):  # once it has ended
        while time.monotonic() < deadline_s:
            try:
                taken += os.write(typing.pipe, encode_input(b"x" * 4000))
            except BlockingIOError:
                time.sleep(0.05)
    assert taken < 300_000 and typing.end() == 0


def test_a_target_that_closes_its_input_goes_on(tmp_path: Path) -> None:
    typing = Typing(tmp_path, "import os; os.close(0); print('closed', flush=True); import time; time.sleep(1)")
    typing.agent.wait_for_output("closed")
    deadline_s = time.monotonic() + 120
    with pytest.raises(BrokenPipeError):
        while time.monotonic() < deadline_s:
            typing.write(encode_input(b"x" * 4000))
            time.sleep(0.02)
    assert typing.end() == 0


def test_what_is_no_message_ends_the_input_and_nothing_else(tmp_path: Path) -> None:
    typing = Typing(tmp_path, "import sys; print(repr(sys.stdin.read()))")
    typing.write(encode_input(b"good") + b"not of ours")
    assert typing.end() == 0 and typing.agent.log("stdout.log") in (b"'good'\n", b"''\n")
    assert any("not passed on any more" in event["message"] for event in typing.agent.events("note"))


def test_a_path_that_is_no_pipe_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    agent = Agent(tmp_path, "import sys; print(repr(sys.stdin.read()))", input=str(tmp_path / "file"))
    assert agent.run().returncode == 0 and agent.log("stdout.log") == b"''\n"


def test_without_a_terminal_there_is_a_width(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "import os, shutil; print(shutil.get_terminal_size(), os.environ['LINES'])", env={})
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    assert agent.run(env=environ).returncode == 0
    assert agent.log("stdout.log") == b"os.terminal_size(columns=80, lines=24) 24\n"


def test_a_width_of_the_users_stays(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "import shutil; print(shutil.get_terminal_size().columns)", env={"COLUMNS": "133"})
    assert agent.run().returncode == 0 and agent.log("stdout.log") == b"133\n"


def test_a_progress_bar_makes_few_frames_and_loses_nothing(tmp_path: Path) -> None:
    """In a container, every piece of a line costs a line of the engine's log."""
    script = """
import sys, time
began = time.monotonic()
for step in range(2000):
    print("\\r%d %%" % step, end="", flush=True)
    time.sleep(0.0005)
print("\\n%f" % (time.monotonic() - began))
"""
    agent = Agent(tmp_path, script, evidence_dir=None, terminal={**TERMINAL, "streams": [1, 2]})
    ended = agent.run()
    decoder, pieces = frames.FrameDecoder(), []
    for line in ended.stdout.split(b"\n")[:-1]:
        kind, data = decoder.feed(line)
        if kind == frames.STDOUT:
            pieces.append(data)
    bar, took_s, _ = b"".join(pieces).split(b"\n")
    assert bar == b"".join(b"\r%d %%" % step for step in range(2000))
    assert 2 <= len(pieces) < 100 * max(1.0, float(took_s))
