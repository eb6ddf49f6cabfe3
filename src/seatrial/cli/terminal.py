"""Print through one door, which cleans all text of a verb, and draw the changing line below a target's output.

The target's own output passes as bytes; a library's output, a warning and a traceback pass ``open_door``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from seatrial.errors import SeatrialError, fallback
from seatrial.system.text import command_and_comment, one_line, visible

if TYPE_CHECKING:
    from rich.console import Console

    from seatrial.runs.streams import Stream

#: Called once, before the next text or output of a target is printed.
before_printing: list[Callable[[], None]] = []

_NAMES = ("stdin", "stdout", "stderr")
#: A terminal's size as its shell reports it. rich prints nothing at all on 0 columns, and fills a line of 10^10.
_SIZES = ("COLUMNS", "LINES")
_LARGEST = 10_000
#: The line comes back after the target has been quiet for this long.
QUIET_S = 0.3
#: A target that has moved the cursor within this time draws something of its own. tqdm draws ten times a second.
OWN_DRAWING_S = 10.0
#: Without a terminal, the first line comes after this long; each gap is twice the one before, up to the last.
FIRST_LOG_S, SELDOM_LOG_S = 30.0, 600.0
#: Seconds between two checks of running work.
_TICK_S = 1.0
#: A carriage return inside a line, and the sequences that move the cursor or erase (ECMA-48, 8.3) or save it (xterm).
_DRAWS = re.compile(rb"\r(?![\r\n])|\x1b\[[0-9;]*[A-HJKSTdf]|\x1b[78M]")
#: xterm's alternate screen and a hidden cursor: between the two sequences the target has the screen for itself.
_TAKES = re.compile(rb"\x1b\[\?(?:1049|47|25)([hl])")


def printing() -> None:
    """Announce that something is printed, or that another program takes the terminal."""
    while before_printing:
        before_printing.pop()()


class Door:
    """A standard stream with cleaned text. ``buffer`` takes bytes as they are, ``uncleaned`` what is drawn."""

    def __init__(self, stream: TextIO) -> None:
        self.uncleaned = stream

    def write(self, text: str) -> int:
        """Write text with every character visible that could steer a terminal."""
        printing()
        self.uncleaned.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            printing()
        return getattr(self.uncleaned, name)


class Trimmed(Door):
    """A stream of cleaned text whose lines end with their last letter: tables pad every line to their width."""

    def write(self, text: str) -> int:
        printing()
        self.uncleaned.write(re.sub(r" +(?=\n)", "", text))
        return len(text)


@contextmanager
def open_door() -> Iterator[None]:
    """Put the door in front of both standard streams."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Door(before[0]), Door(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def uncleaned(*, stderr: bool = False) -> TextIO:
    """Return a standard stream to draw on: its caller cleans what is not its own."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.uncleaned if isinstance(stream, Door) else stream


def at_words(text: str, console: Console, indent: str = "    ", whole: re.Pattern[str] | None = None) -> str:
    """Wrap between words on a terminal, which would break anywhere; indent further lines; never break ``whole``."""
    if not console.is_terminal:
        return text
    from textwrap import TextWrapper  # only a terminal needs it

    wrap = TextWrapper(console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    joined = whole.sub(lambda found: found[0].replace(" ", "\0"), text) if whole else text
    return "\n".join(map(wrap, joined.split("\n"))).replace("\0", " ")


def at_comment(command: str, console: Console) -> str:
    """Move the comment behind a command below it, where a terminal would break it; the command stays whole."""
    words, comment = command_and_comment(command)
    whole = not comment or not console.is_terminal or len(command) <= console.width
    return command if whole else f"{words}\n" + at_words(f"    # {comment}", console, indent="    # ")


def console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console that cleans the text between its own colours. No text is markup."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    file = cast("TextIO", Trimmed(uncleaned(stderr=stderr)))
    return Clean(file=file, stderr=stderr, soft_wrap=soft_wrap, markup=False, highlight=False, emoji=False)


def prepare() -> None:
    """Open closed streams on /dev/null, replace characters that an encoding lacks, remove impossible sizes.

    The next file opened would get a closed descriptor's number, and a target's output.
    """
    for number, name in enumerate(_NAMES):
        if not are_one_file(number):  # a closed descriptor has no file
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # inheritable, as a standard stream is
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's replacement may have none
        if reconfigure is not None:
            # UTF-8 lacks only halves of characters, which stand for bytes of a name that are not UTF-8.
            reconfigure(errors="backslashreplace" if stream.encoding.lower().startswith("utf") else "replace")
    for name in _SIZES:
        if (size := os.environ.get(name)) is not None and not (size.isdecimal() and 1 <= int(size[:9]) <= _LARGEST):
            del os.environ[name]


def finish() -> None:
    """Write what is still in memory. Raises BrokenPipeError: no reader; SeatrialError: it cannot be written."""
    printing()
    if (error := flush()) is not None:
        raise error if isinstance(error, BrokenPipeError) else cannot_write(error) from error


def cannot_write(error: OSError) -> SeatrialError:
    """Make the error for an output that is a full disk or a broken device."""
    cause = "standard output goes to a full disk or to a device that accepts no data"
    return SeatrialError(f"The output cannot be written: {error.strerror}", cause=cause, run="df -h .")


def flush() -> OSError | None:
    """Write the buffered output of both streams; return the error if one does not take it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        return error
    return None


def abandon() -> None:
    """Discard buffered output that cannot be written: the interpreter would report it when it flushes at its end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


class LiveLine:
    """Shows one line on standard error, and steps aside for what else is printed there.

    The caller announces other output (``before_output``) and calls ``show`` several times a second.
    ``changes``: a line can be drawn over: on a terminal that nobody else prints on.
    """

    def __init__(self, log: Callable[[str], None] = lambda line: None) -> None:
        # A background job draws nothing: its output is a log.
        self._terminal = os.environ.get("TERM", "dumb") != "dumb" and os.isatty(2) and _in_foreground()
        out = os.fstat(1).st_mode
        # A pipe's reader may print here, too: ``| tee``.
        self.changes = self._terminal and not (stat.S_ISFIFO(out) or stat.S_ISSOCK(out))
        self._own: list[Stream] = ["stderr"]  # what is printed there stands where the line would
        if os.isatty(1) if self._terminal else are_one_file(1, 2):
            self._own.append("stdout")
        self._log, self._shown = log, ""
        self._at_line_start = True
        self._taken = False
        self._drew_s = float("-inf")
        self._output_s = time.monotonic()
        self._log_due_s, self._log_every_s = self._output_s + FIRST_LOG_S, FIRST_LOG_S

    def before_output(self, stream: Stream, data: bytes) -> None:
        """Take the line away before the target's output is printed, and remember where that ends."""
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

    def show(self, text: str) -> None:
        """Show ``text`` ("": nothing) if there is space. Without a terminal, write it to the log now and then."""
        now_s = time.monotonic()
        if not self._terminal:
            if text and now_s >= self._log_due_s and self._at_line_start:
                self._log_every_s = min(2 * self._log_every_s, SELDOM_LOG_S)
                self._log_due_s = now_s + self._log_every_s
                self._log(text)
            return
        free = self.changes and self._at_line_start and not self._taken and now_s - self._output_s >= QUIET_S
        if not text or not free or now_s - self._drew_s < OWN_DRAWING_S or not _in_foreground():
            self.clear()
        elif text != self._shown:
            self._shown = text
            with contextlib.suppress(OSError):  # as _print
                width = os.get_terminal_size(2).columns or 80
                _print(f"\r\x1b[K\x1b[2m{_fitted(one_line(text), max(1, width - 1))}\x1b[0m")

    def clear(self) -> None:
        """Take the line away; the cursor is where it was."""
        if self._shown:
            self._shown = ""
            _print("\r\x1b[K")


@contextmanager
def ticking(act: Callable[[], None]) -> Iterator[None]:
    """Call a function once a second, the first time after half of one, in a thread of its own."""
    ended = threading.Event()

    def tick() -> None:
        wait_s = _TICK_S / 2  # the program has loaded for a second in silence
        while not ended.wait(wait_s):
            act()
            wait_s = _TICK_S

    thread = threading.Thread(target=tick, name="ticking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def alive() -> Iterator[None]:
    """Show on a terminal for how long a verb has worked, until it prints something itself."""
    live, began_s, drawing = LiveLine(), time.monotonic(), threading.RLock()

    def show() -> None:
        from seatrial.system.command import doing_now  # the first time is after half a second

        words = f"{['working', *doing_now][-1]}, {time.monotonic() - began_s:.0f} s"
        with drawing:
            live.show(words if clear in before_printing else "")

    def clear() -> None:
        with drawing:
            live.clear()

    before_printing.append(clear)
    with ticking(show):
        yield


def _fitted(text: str, width: int) -> str:
    """Return as many of a line's parts as fit; of the first one as many words."""
    if len(text) <= width:
        return text
    part = max(text.rfind(end, 0, width + 1) for end in ("; ", ", "))
    return text[:part] if part > 0 else text[: max(text.rfind(" ", 0, width), 0) or width - 1] + "…"


def _print(text: str) -> None:
    """Print to the terminal, if it is still there: a closed one does not end the run."""
    with contextlib.suppress(OSError):
        file = uncleaned(stderr=True)
        file.write(text)
        file.flush()


def _in_foreground() -> bool:
    from seatrial.system.host import in_foreground  # only a terminal needs it

    return in_foreground(2)


@fallback(False, on=OSError)
def are_one_file(*numbers: int) -> bool:
    """Return True for one file behind these descriptors: ``2>&1``, or one pipe for both."""
    return len({(os.fstat(number).st_dev, os.fstat(number).st_ino) for number in numbers}) == 1
