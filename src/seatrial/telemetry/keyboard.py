"""Single key presses from a terminal, which is left as it was found."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keys() -> Iterator[Keyboard]:
    """A keyboard while this holds; without a terminal on stdin, one that nobody types on."""
    if not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keyboard:
    """Keys as they come. An escape sequence (an arrow) is one key."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> str | None:
        """The next key, or None after so many seconds. Raises EOFError when the terminal has gone."""
        readable = [] if self._descriptor is None else [self._descriptor]
        ready, _, _ = select.select(readable, [], [], max(0.0, seconds))
        if not ready or self._descriptor is None:
            return None
        data = os.read(self._descriptor, 64)
        if not data:
            raise EOFError
        return data.decode("utf-8", "replace")
