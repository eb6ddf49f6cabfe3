"""The lines that seatrial draws on a terminal and in a log: of a build, below a target's output, and the verdict's."""

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
from seatrial.images.build.progress import CACHED, READY
from seatrial.runs import launch


def on_a_terminal(argv: list[str], stdout: int | None = None, columns: int = 120, *, owns: bool = True) -> bytes:
    """Return the terminal's content while a program runs in its foreground, or in the background without ``owns``."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", *argv],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if owns else None,
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
    assert child.wait(timeout=300) == 0, shown.decode()
    return shown.replace(b"\r\n", b"\n")


#: The line, drawn, and taken away.
DRAWN, GONE = rb"\r\x1b\[K\x1b\[2m[^\x1b]*\x1b\[0m", rb"\r\x1b\[K"


# --------------------------------------------------------------------- a build

#: Lines as a build prints them, slowly enough that the line is drawn, then its end.
BUILD = """
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
            time.sleep(1.0)
        if "fails" in sys.argv:
            raise ImageError("no such package")
        line("image ready (cached)" if "cached" in sys.argv else "image ready: 1.4 GB, built in 41 s")
except ImageError as error:
    print("error:", error, file=sys.stderr)
"""


def in_a_log(*how: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", BUILD, *how], capture_output=True, text=True, check=True)
    return once(done.stderr.splitlines())


def once(lines: list[str]) -> list[str]:
    """Return one line for each activity, even if a busy machine printed it several times."""
    return list(dict.fromkeys(re.sub(r"pip, \d s:", "pip, 1 s:", line) for line in lines))


def lines_left(shown: str) -> list[str]:
    """Return the lines that stay, without colours and overwritten text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    return [re.sub(r".*\r?\x1b\[K", "", line) for line in plain.rstrip("\n").split("\n")]


def test_on_a_terminal_one_line_changes_and_one_stays() -> None:
    shown = on_a_terminal([BUILD]).decode()
    assert re.search(r"\r\x1b\[K\x1b\[2minstalling the framework with pip, \d s: 1 package, 6.3 MB downloaded;", shown)
    assert lines_left(shown) == ["seatrial image ready: 1.4 GB, built in 41 s, 1 package, 6.3 MB downloaded"]


def test_an_image_that_is_there_is_one_line() -> None:
    assert (
        lines_left(on_a_terminal([BUILD, "cached"]).decode()) == in_a_log("cached") == ["seatrial image ready (cached)"]
    )


def test_a_log_has_a_line_a_step_and_what_takes_long() -> None:
    assert in_a_log() == [
        "  creating the virtual environment",
        "  installing the framework with pip",
        "  installing the framework with pip, 1 s: 1 package, 6.3 MB downloaded; downloading sympy 1.14.0 (6.3 MB)",
        "seatrial image ready: 1.4 GB, built in 41 s, 1 package, 6.3 MB downloaded",
    ]


def test_on_a_terminal_of_another_session_a_build_is_a_log() -> None:
    assert once(lines_left(on_a_terminal([BUILD], owns=False).decode())) == in_a_log()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_build_that_fails_leaves_all_that_it_printed_above_the_error(terminal: bool) -> None:
    message = lines_left(on_a_terminal([BUILD, "fails"]).decode()) if terminal else in_a_log("fails")
    assert message[-1] == "error: no such package"
    assert any(line.startswith("  [base 4/4] RUN python3 -m venv") for line in message)
    assert "    Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)" in message


def test_verbose_is_each_line_and_quiet_none() -> None:
    assert "    Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)" in in_a_log("whole")
    assert in_a_log("quiet") == []


def test_anyone_who_starts_many_runs_is_reported_of_builds_alone() -> None:
    message: list[str] = []
    echo = launch.without_cached(message.append)
    for line in (CACHED, f"{READY}: 1 GB, built in 3 s", CACHED):
        echo(line)
    assert message == [f"{READY}: 1 GB, built in 3 s"]


# ------------------------------------------------------------- before an answer

ALIVE = """
import sys, time
from seatrial.cli import terminal
terminal._TICK_S, terminal.QUIET_S = 0.05, 0.0
with terminal.open_door(), terminal.alive():
    time.sleep(1.0)
    sys.stdout.buffer.write(b"answer\\n") if "bytes" in sys.argv else print("answer")
    sys.stdout.flush()
    time.sleep(1.0)
"""


@pytest.mark.parametrize("how", ["text", "bytes"])
def test_a_verb_shows_that_it_works_until_it_answers(how: str) -> None:
    shown = on_a_terminal([ALIVE, how])
    assert re.fullmatch(rb"(%s)+%sanswer\n" % (DRAWN, GONE), shown) and b"working, 0 s" in shown
    assert subprocess.run([sys.executable, "-c", ALIVE, how], capture_output=True).stderr == b""


# -------------------------------------------------------- below a target's output

#: Prints pieces of output as a run's screen would, and shows the line after each.
LIVE = """
import sys
from seatrial.cli import terminal as live_line
live_line.QUIET_S = 0.0
live_line.FIRST_LOG_S = float(sys.argv[2])
line = live_line.LiveLine(lambda shown: print("LOG", shown, file=sys.stderr, flush=True))
for piece in eval(sys.argv[1]):
    line.before_output("stdout", piece)
    sys.stdout.flush(); sys.stdout.buffer.write(piece); sys.stdout.buffer.flush()
    for text in ("7 steps, 3 steps/s", "8 steps, 3 steps/s"):
        line.show(text)
line.clear()
"""


def live(*pieces: bytes, stdout: int | None = None, columns: int = 80) -> bytes:
    return on_a_terminal([LIVE, repr(pieces), "0"], stdout, columns)


def test_it_stands_below_whole_lines_and_leaves_no_trace() -> None:
    shown = live(b"epoch 1\n", b"epoch 2\n")
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
    assert live(*pieces) == b"".join(pieces)


@pytest.mark.parametrize("end", [b"\x1b[?25h\n", b"\x1b[?1049l\n"])
def test_it_comes_back_when_the_targets_screen_has_gone(end: bytes) -> None:
    begin = end[:-1].replace(b"h", b"l") if end.endswith(b"h\n") else end[:-1].replace(b"l", b"h")
    shown = live(begin, b"a table\n", end)
    assert shown.startswith(begin + b"a table\n" + end) and b"8 steps" in shown


def test_colours_are_no_drawing_and_it_is_never_wider_than_the_terminal() -> None:
    assert b"8 steps" in live(b"\x1b[32mepoch 1\x1b[0m\n")
    narrow = live(b"a\n", columns=10)
    assert b"7 steps\x1b" in narrow and b"steps/s" not in narrow


def test_who_reads_a_pipe_may_print_here_too() -> None:
    read, write = os.pipe()
    try:
        assert live(b"epoch 1\n", stdout=write) == b""
    finally:
        os.close(read)
        os.close(write)


def test_a_file_with_the_terminal_disturbs_nobody(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        shown = live(b"no end", b"of a line", stdout=file.fileno())
    assert b"8 steps" in shown and (tmp_path / "log").read_bytes() == b"no endof a line"


@pytest.mark.parametrize("after_s", ["0", "60"])
def test_in_a_log_it_is_a_line_of_its_own(after_s: str) -> None:
    """CI puts both streams into one file."""
    command = [sys.executable, "-c", LIVE, repr((b" 10%|#", b" 20%|##", b"\n", b"done\n")), after_s]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    own, _, rest = ended.stdout.partition(b"\n")
    assert own == b" 10%|# 20%|##" and b"\x1b" not in ended.stdout
    result = [line for line in rest.splitlines() if line != b"done"]
    assert set(result) == ({b"LOG 7 steps, 3 steps/s", b"LOG 8 steps, 3 steps/s"} if after_s == "0" else set())


def test_in_a_log_it_becomes_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error of pytest is not a terminal."""
    now_s = 0.0
    monkeypatch.setattr(live_line.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(live_line.os, "isatty", lambda number: False)
    result: list[float] = []
    line = live_line.LiveLine(lambda text: result.append(now_s))
    for now_s in map(float, range(24 * 3600)):  # noqa: B007
        line.show("7 steps")
    assert result[:4] == [30, 90, 210, 450] and len(result) < 160


# ----------------------------------------------------------------- the verdict

WORKING = """
import time
from seatrial.cli import terminal
from seatrial.cli.screen import Screen
terminal._TICK_S, terminal.FIRST_LOG_S = 0.05, 0.2
with Screen(quiet=%s).working("reading the image"):
    time.sleep(1.0)
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_work_that_takes_long_is_in_the_log_of_a_pipe_unless_quiet(quiet: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", WORKING % quiet], capture_output=True)
    assert (
        ended.stdout == b"" and ended.stderr == b"" if quiet else b"seatrial reading the image, 0 s\n" in ended.stderr
    )


VERDICT = """
import sys
from seatrial.cli.screen import Screen
screen = Screen()
screen.write("%s", b"%s")
screen.end_line()
print("verdict", flush=True)
"""


@pytest.mark.parametrize(
    ("stream", "text", "shown"),
    [("stdout", "no end", b"no end\n"), ("stdout", "an end\\n", b"an end\n"), ("stderr", "no end", b"no end\n")],
)
def test_a_line_without_an_end_is_broken_in_one_file_and_left_in_another(stream: str, text: str, shown: bytes) -> None:
    argv = [sys.executable, "-c", VERDICT % (stream, text)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout == shown + b"verdict\n"
    if stream == "stderr":
        done = subprocess.run(argv, capture_output=True)
        assert (done.stdout, done.stderr) == (b"verdict\n", b"no end")


def test_a_message_begins_behind_a_progress_bar_that_the_target_left_without_an_end() -> None:
    lines = ('screen.write("stderr", b"1/2\\r")', 'screen.write("stdout", b"done\\n")', 'screen.note("a message")')
    text = "\n".join((*VERDICT.splitlines()[:4], *lines))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True)
    assert (done.stdout, done.stderr) == (b"done\n", b"1/2\r\nseatrial a message\n")


def test_a_line_ends_at_a_part_or_a_word() -> None:
    text = "installing with pip, 22 s: 10 of 17 packages, 10 MB downloaded; downloading torch 2.13.0"
    assert live_line._fitted(text, 80) == text.partition(";")[0]
    assert live_line._fitted(text, 50) == "installing with pip, 22 s: 10 of 17 packages"
    assert live_line._fitted("a sentence without parts", 14) == "a sentence…"
