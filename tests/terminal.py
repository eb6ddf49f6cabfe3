"""Runs a command on a terminal of its own. Import as ``from terminal import Terminal``."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from typing import Any


class Terminal:
    """A command on a terminal of 33 lines and 101 columns.

    Attributes:
        shown: all that was on the screen so far.
    """

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(33, 101)
        self._before = termios.tcgetattr(theirs)
        self.shown = b""
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **options,
        )
        os.close(theirs)

    @property
    def is_as_before(self) -> bool:
        """Return True if its settings are those that it began with."""
        return termios.tcgetattr(self._ours) == self._before

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read(self, timeout_s: float) -> bytes | None:
        """Return what comes within so long; None when nobody writes to it any more."""
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return b""
        try:
            more = os.read(self._ours, 65536)
        except OSError:  # Linux ends a terminal so
            return None
        self.shown += more
        return more

    def expect(self, text: bytes, timeout_s: float = 300) -> None:
        """Wait until this is on the screen."""
        deadline_s = time.monotonic() + timeout_s
        while text not in self.shown:
            assert self.read(0.1) is not None and time.monotonic() < deadline_s, self.shown.decode()

    def end(self, timeout_s: float = 300) -> int:
        """Read to the end; return the exit code."""
        deadline_s = time.monotonic() + timeout_s
        while self.read(1.0) is not None:
            assert time.monotonic() < deadline_s, self.shown.decode()
        code = self.process.wait(timeout=300)
        os.close(self._ours)
        return code
