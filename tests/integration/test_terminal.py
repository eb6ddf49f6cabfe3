"""``seatrial run`` for scripts that ask: on a terminal, with a pipe, with neither."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from cli_project import Project
from terminal import Terminal

ASKS = """
import os, sys, time
print([os.isatty(number) for number in (0, 1, 2)], *os.get_terminal_size(), flush=True)
os.system("stty size")
name = input("Your name? ")
print("Hello", name, file=sys.stderr, flush=True)
input()
for _ in range(300):  # what was typed may come before the new size
    if os.get_terminal_size().columns != 101: break
    time.sleep(0.1)
print(*os.get_terminal_size())
sys.exit(3)
"""


def run_on(project: Project, script: str) -> Terminal:
    argv = project.argv("run", "--on", project.backend, "--gpus", "none", script)
    return Terminal(argv, cwd=project.folder, env={**project.environ, "TERM": "xterm"}, **project.user)


def end(terminal: Terminal) -> int:
    """Its exit code; the terminal is as it was."""
    terminal.expect(b"receipt.html")
    terminal.process.wait(timeout=300)
    assert terminal.is_as_before
    return terminal.end()


@pytest.mark.both_engines
def test_a_dialogue_on_a_terminal(project: Project) -> None:
    project.write("ask.py", ASKS)
    terminal = run_on(project, "ask.py")
    terminal.expect(b"Your name? ")
    terminal.type(b"Bib\x7f\x7fob\r")
    terminal.expect(b"Hello Bob")
    terminal.resize(10, 60)
    terminal.type(b"\r")
    assert end(terminal) == 1
    assert b"[True, True, True] 101 33\r\n33 101\r\n" in terminal.shown and b"\r\n60 10\r\n" in terminal.shown
    assert project.output().startswith("[True, True, True] 101 33\n33 101\n") and "\n60 10\n" in project.output()
    assert "Hello Bob\n" in project.output("stderr") and "Hello" not in project.output()
    receipt = project.receipt()
    assert receipt["exit_cause"]["target_exit_code"] == 3 and receipt["seal"]["missing"] == 0
    assert not (project.last / "input").exists()


def test_ctrl_c_while_it_waits_for_an_answer_stops_the_run(local_project: Project) -> None:
    local_project.write("ask.py", "input('Your name? ')")
    terminal = run_on(local_project, "ask.py")
    terminal.expect(b"Your name? ")
    terminal.type(b"\x03")
    end(terminal)
    assert local_project.receipt()["exit_cause"]["id"] == "stopped"


def test_a_pipe_answers(project: Project) -> None:
    project.write("ask.py", "print('Hello', input(), end='')\nimport sys; print(len(sys.stdin.read()))")
    ended = subprocess.run(
        project.argv("run", "--on", project.backend, "--gpus", "none", "ask.py"),
        cwd=project.folder,
        env=project.environ,
        input=b"Bob\n" + b"x" * 300_000,
        capture_output=True,
        timeout=300,
        **project.user,
    )
    assert ended.returncode == 0 and ended.stdout.startswith(b"Hello Bob300000\n"), ended.stderr


def test_a_loop_keeps_its_list_and_a_pipe_that_never_ends_is_left_alone(local_project: Project) -> None:
    local_project.write("train.py", "print('trained')")
    ours = " ".join(local_project.argv("run", "--on", "local", "--gpus", "none", "train.py"))
    (local_project.folder / "list").write_text("a\nb\n")
    loop = f"while read item; do {ours} | grep -q trained && echo $item; done"
    options = {"cwd": local_project.folder, "env": local_project.environ, "stdout": subprocess.PIPE, "timeout": 120}
    from_file = subprocess.run(["sh", "-c", f"{loop} < list"], **options)  # type: ignore[call-overload]
    from_pipe = subprocess.run(["sh", "-c", f"cat list | {loop}"], **options)  # type: ignore[call-overload]
    assert from_file.stdout == from_pipe.stdout == b"a\nb\n"
    never, write_end = os.pipe()
    ended = subprocess.run(ours.split(), stdin=never, **options)  # type: ignore[call-overload]
    os.close(write_end)
    os.close(never)
    assert ended.returncode == 0 and b"trained" in ended.stdout


@pytest.mark.parametrize(
    ("script", "finding"),
    [
        ("import os\nrows, columns = os.popen('stty size', 'r').read().split()", "no-terminal"),
        ("import os; os.get_terminal_size()", "no-terminal"),
        ("print('Hello', input('Your name? '))", "no-input"),
    ],
)
def test_neither(local_project: Project, script: str, finding: str) -> None:
    local_project.write("train.py", script)
    local_project.run("--gpus", "none", "train.py", exit_code=1)
    [found] = local_project.receipt()["findings"]
    assert found["id"] == finding and "seatrial run train.py" in found["fix"]
    local_project.write("train.py", f"try:\n    exec({script!r})\nexcept Exception: pass")
    local_project.run("--gpus", "none", "train.py")
    assert local_project.receipt()["findings"] == []


TRAINS = """
import json, os, time
with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
    for line in range(8):
        report = {"pid": 7, "steps": 80 * line, "seconds": 0.5 * line, "examples": 640 * line, "pass": [80 * line, 800]}
        print(json.dumps({"anatomy": report}), file=events, flush=True)
        if line % 4 == 1: print("epoch", line, flush=True)
        time.sleep(0.5)
for percent in range(0, 100, 10):
    print(f"\\r {percent:3}%|", end="", flush=True)
    time.sleep(0.1)
print("\\nended")
"""


def test_what_trains_shows_how_fast_and_a_bar_is_left_alone(local_project: Project) -> None:
    local_project.write("train.py", TRAINS)
    terminal = run_on(local_project, "train.py")
    assert end(terminal) == 0
    shown = terminal.shown
    assert b" left; " in shown and b"160 steps/s, 1,280 examples/s" in shown and b" of this pass, " in shown
    bars = b"".join(b"\r %3d%%|" % percent for percent in range(0, 100, 10))
    assert bars + b"\r\nended\r\n" in shown
    left = re.sub(rb"(\r\x1b\[K\x1b\[2m[^\x1b]*\x1b\[0m)+\r\x1b\[K", b"", shown)
    assert b"epoch 1\r\nepoch 5\r\n" + bars in left
    assert b"Done on the CPU" in shown
    plain = local_project.run("--gpus", "none", "train.py")
    assert "steps/s" not in plain.stderr and "\x1b" not in plain.stderr + plain.stdout
