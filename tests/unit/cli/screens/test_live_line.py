"""The line below a target's output, on a real terminal: it comes, goes before the next byte, never stands in a bar."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from seatrial.cli import terminal as live_line

#: Prints what it is told as a run's screen would, and shows the line after each piece.
CHILD = """
import sys
from seatrial.cli import terminal as live_line
live_line.QUIET_S = 0.0
live_line.FIRST_LOG_S = float(sys.argv[2])
line = live_line.LiveLine()
for piece in eval(sys.argv[1]):
    line.before_output("stdout", piece)
    sys.stdout.flush(); sys.stdout.buffer.write(piece); sys.stdout.buffer.flush()
    for text in ("7 steps, 3 steps/s", "8 steps, 3 steps/s"):
        if (told := line.show(text)) is not None:
            print("LOG", told, file=sys.stderr, flush=True)
line.clear()
"""

#: The line, drawn, and taken away.
DRAWN, GONE = rb"\r\x1b\[K\x1b\[2m[^\x1b]*\x1b\[0m", rb"\r\x1b\[K"


def on_a_terminal(*pieces: bytes, stdout: int | None = None, columns: int = 80) -> bytes:
    """Return the terminal's content as bytes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, repr(pieces), "0"],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
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
    assert child.wait(timeout=30) == 0, shown.decode()
    return shown.replace(b"\r\n", b"\n")


def test_it_stands_below_whole_lines_and_leaves_no_trace() -> None:
    shown = on_a_terminal(b"epoch 1\n", b"epoch 2\n")
    assert shown.count(b"8 steps") == 2
    assert re.sub(DRAWN, b"", shown).count(b"\r\x1b[K") == 2  # before the second line, and at the end
    assert re.sub(rb"(%s)+%s" % (DRAWN, GONE), b"", shown) == b"epoch 1\nepoch 2\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"Your name? ", b"Bob"),
        (b"\r 10%|#         | 1/10", b"\r 20%|##        | 2/10", b"\n"),
        (b"epoch 1 done\n\x1b[A\x1b[2K 3/10\n", b"4/10\n"),
        (b"\x1b[?25l", b"a table\n", b"of rich's\n"),
        (b"\x1b[?1049h", b"a screen\n"),
    ],
    ids=["a question", "tqdm", "nested bars", "rich", "curses"],
)
def test_what_the_target_draws_is_left_alone(pieces: tuple[bytes, ...]) -> None:
    assert on_a_terminal(*pieces) == b"".join(pieces)


@pytest.mark.parametrize("end", [b"\x1b[?25h\n", b"\x1b[?1049l\n"])
def test_it_comes_back_when_the_targets_screen_has_gone(end: bytes) -> None:
    begin = end[:-1].replace(b"h", b"l") if end.endswith(b"h\n") else end[:-1].replace(b"l", b"h")
    shown = on_a_terminal(begin, b"a table\n", end)
    assert shown.startswith(begin + b"a table\n" + end) and b"8 steps" in shown


def test_colours_are_no_drawing() -> None:
    assert b"8 steps" in on_a_terminal(b"\x1b[32mepoch 1\x1b[0m\n")


def test_it_is_never_wider_than_the_terminal() -> None:
    assert b"7 steps, " in on_a_terminal(b"a\n", columns=10) and b"steps/s" not in on_a_terminal(b"a\n", columns=10)


def test_who_reads_a_pipe_may_print_here_too() -> None:
    read, write = os.pipe()
    try:
        assert on_a_terminal(b"epoch 1\n", stdout=write) == b""
    finally:
        os.close(read)
        os.close(write)


def test_a_file_with_the_terminal_disturbs_nobody(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        shown = on_a_terminal(b"no end", b"of a line", stdout=file.fileno())
    assert b"8 steps" in shown and (tmp_path / "log").read_bytes() == b"no endof a line"


@pytest.mark.parametrize("after_s", ["0", "60"])
def test_in_a_log_it_is_a_line_of_its_own(after_s: str) -> None:
    """CI puts both streams into one file."""
    command = [sys.executable, "-c", CHILD, repr((b" 10%|#", b" 20%|##", b"\n", b"done\n")), after_s]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    own, _, rest = ended.stdout.partition(b"\n")
    assert own == b" 10%|# 20%|##" and b"\x1b" not in ended.stdout
    result = [line for line in rest.splitlines() if line != b"done"]
    assert set(result) == ({b"LOG 7 steps, 3 steps/s", b"LOG 8 steps, 3 steps/s"} if after_s == "0" else set())


def test_in_a_log_it_becomes_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error of pytest is no terminal."""
    now_s = 0.0
    monkeypatch.setattr(live_line.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(live_line, "_is_terminal", lambda number: False)
    line, result = live_line.LiveLine(), []
    for now_s in range(24 * 3600):
        result += [now_s] if line.show("7 steps") is not None else []
    assert result[:4] == [30, 90, 210, 450] and len(result) < 160
