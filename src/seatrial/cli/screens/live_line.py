"""The one line that says how fast a run trains: below the target's output on a terminal, seldom in a log.

It never stands where the target draws. It is shown only while the cursor is at the beginning of a line, below one that
the target has finished, taken away before the next byte of the target's, and not shown at all while a progress bar or a
screen of the target's own is there. docs/decisions.md, 0038 says what lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time

from seatrial.runs.following.output import Stream
from seatrial.system.caller import in_foreground

#: The target has been quiet for so long before the line comes back.
QUIET_S = 0.3

#: A target that has moved the cursor within this time draws something of its own. tqdm draws ten times a second.
OWN_DRAWING_S = 10.0

#: Without a terminal: a line after so long, then each after twice the time of the one before, up to the last.
FIRST_LOG_S, SELDOM_LOG_S = 30.0, 600.0

#: A carriage return inside a line, and the sequences that move the cursor or erase (ECMA-48, 8.3) or save it (xterm).
_DRAWS = re.compile(rb"\r(?![\r\n])|\x1b\[[0-9;]*[A-HJKSTdf]|\x1b[78M]")

#: xterm's alternate screen and a hidden cursor: from here to its end the target has the screen for itself.
_TAKES = re.compile(rb"\x1b\[\?(?:1049|47|25)([hl])")


class LiveLine:
    """Shows one line on standard error, and steps aside for what else is printed there.

    The caller says what is printed (``before_output``) and calls ``show`` several times a second.
    """

    def __init__(self) -> None:
        self._terminal = _is_terminal(2) and os.environ.get("TERM", "dumb") != "dumb"
        self._possible = self._terminal and not _is_pipe(1)  # whoever reads the pipe may print here, too: ``| tee``
        self._own: list[Stream] = ["stderr"]  # what is printed there stands where the line would
        if _is_terminal(1) if self._terminal else are_one_file(1, 2):
            self._own.append("stdout")
        self._shown = ""
        self._at_line_start = True
        self._taken = False
        self._drew_s = float("-inf")
        self._output_s = time.monotonic()
        self._log_due_s, self._log_every_s = self._output_s + FIRST_LOG_S, FIRST_LOG_S

    @property
    def changes(self) -> bool:
        """Whether a line can be drawn over: on a terminal that nobody else prints on."""
        return self._possible

    def before_output(self, stream: Stream, data: bytes) -> None:
        """Called with the target's output before it is printed."""
        self.clear()
        if stream not in self._own or not data:
            return
        self._output_s = time.monotonic()
        self._at_line_start = data.endswith(b"\n")
        if b"\x1b" in data or b"\r" in data:
            if _DRAWS.search(data):
                self._drew_s = self._output_s
            for taken in _TAKES.finditer(data):
                showing_cursor = taken[0].startswith(b"\x1b[?25")
                self._taken = (taken[1] == b"l") is showing_cursor

    def show(self, text: str) -> str | None:
        """Show ``text`` ("": nothing) if there is room now. Without a terminal: now and then a line for the log."""
        now_s = time.monotonic()
        if not self._terminal:
            return self._for_a_log(text, now_s)
        free = self._possible and self._at_line_start and not self._taken and now_s - self._output_s >= QUIET_S
        if not text or not free or now_s - self._drew_s < OWN_DRAWING_S or not in_foreground(2):
            self.clear()
        elif text != self._shown:
            self._draw(text)
        return None

    def clear(self) -> None:
        """Take it away; the cursor is where it was."""
        if self._shown:
            self._shown = ""
            _print("\r\x1b[K")

    def _draw(self, text: str) -> None:
        self._shown = text
        with contextlib.suppress(OSError):  # as _print
            width = os.get_terminal_size(2).columns or 80
            _print(f"\r\x1b[K\x1b[2m{text[: max(1, width - 1)]}\x1b[0m")

    def _for_a_log(self, text: str, now_s: float) -> str | None:
        if not text or now_s < self._log_due_s or not self._at_line_start:
            return None
        self._log_every_s = min(2 * self._log_every_s, SELDOM_LOG_S)
        self._log_due_s = now_s + self._log_every_s
        return text


def _print(text: str) -> None:
    """A terminal that was closed is no reason to stop following the run."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def are_one_file(*numbers: int) -> bool:
    """``2>&1``, and everything that starts a program with one pipe for both."""
    try:
        return len({(os.fstat(number).st_dev, os.fstat(number).st_ino) for number in numbers}) == 1
    except OSError:
        return False


def _is_pipe(number: int) -> bool:
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
