"""The three standard streams: fit to be used before a verb runs, and brought to their end after it.

A stream may be closed (``>&-``, some daemons), full (``/dev/full``), without a reader (``| head``), or of an encoding
that lacks a character of ours. None of these is a defect of seatrial's, and none may end in a traceback.
"""

from __future__ import annotations

import os
import sys

from seatrial.errors import SeatrialError

_NAMES = ("stdin", "stdout", "stderr")

#: A terminal's size as its shell tells it. rich prints nothing at all on 0 columns, and fills a line of 10^10.
_SIZES = ("COLUMNS", "LINES")
_LARGEST = 10_000


def prepare() -> None:
    """Open what is closed on /dev/null, replace characters that a stream's encoding lacks, forget impossible sizes.

    A closed descriptor does not stay closed: the next file opened would get its number, and what a target prints would
    be written into a plan or a log.
    """
    for number, name in enumerate(_NAMES):
        if not _is_open(number):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # inheritable, as a standard stream is
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # whatever a test has put in its place may have none
        if reconfigure is not None:
            # UTF-8 lacks only halves of characters, which stand for bytes of a name that are not UTF-8.
            reconfigure(errors="backslashreplace" if stream.encoding.lower().startswith("utf") else "replace")
    for name in _SIZES:
        if (size := os.environ.get(name)) is not None and not (size.isdecimal() and 1 <= int(size[:9]) <= _LARGEST):
            del os.environ[name]


def finish() -> None:
    """Write what is still in memory, so that a failure is ours to tell and not the interpreter's at its end.

    Raises BrokenPipeError when the reader has gone, SeatrialError when standard output cannot be written.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(error) from error


def cannot_write(error: OSError) -> SeatrialError:
    """The sentence for an output that is a full disk or a broken device."""
    return SeatrialError(
        f"The output cannot be written: {error.strerror}",
        cause="standard output goes to a full disk or to a device that accepts no data",
        run="df -h .",
    )


def are_writable() -> bool:
    """Whether both output streams still take what is in memory for them."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return False
    return True


def abandon() -> None:
    """What is still in memory goes nowhere: at its end the interpreter flushes once more, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, number)
    os.close(nowhere)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
