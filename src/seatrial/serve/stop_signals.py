"""Signals that ask the program to end, for every process of it, whatever the model computes.

Python runs a handler between two bytecodes of the main thread: a batch that is one long call puts it off, and one that
keeps Python's lock puts every other thread off, too. Only the signal's number is written to the wakeup descriptor at
once. So that descriptor is a file in memory, which each front reads for itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

STOPPING = (signal.SIGTERM, signal.SIGINT)
_READ_BYTES = 4096


class StopSignals:
    """The file, and how far this process has read it. It holds a byte for each signal that Python code handles.

    Args:
        descriptor: of the file, from ``StopSignals.create``.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._read_bytes = 0
        self._stop = self._handled = False

    @classmethod
    def create(cls) -> StopSignals:
        """A new file, with no signal in it."""
        descriptor = os.memfd_create("seatrial-serve-signals")
        os.set_blocking(descriptor, False)  # as signal.set_wakeup_fd demands
        return cls(descriptor)

    def collect(self, act: Callable[[], None]) -> None:
        """Signals to this process go into the file; ``act`` is called for the first, when Python comes to it."""

        def handle(number: int, _: object) -> None:
            # once more: an event loop in the model's code takes the wakeup descriptor for itself
            os.write(self.descriptor, bytes((number,)))
            if not self._handled:  # a handler may interrupt itself
                self._handled = True
                act()

        signal.set_wakeup_fd(self.descriptor)
        for number in STOPPING:
            signal.signal(number, handle)
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)

    def came(self) -> bool:
        """Whether one has come, ever."""
        if not self._stop:
            numbers = os.pread(self.descriptor, _READ_BYTES, self._read_bytes)
            self._read_bytes += len(numbers)
            self._stop = any(number in numbers for number in STOPPING)
        return self._stop


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _forget() -> None:
    """In a process that the model's code has forked: a signal to it is none to the program.

    It ends by SIGTERM, and not by a Ctrl-C that the terminal sends to all: what it works on may be answered still.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _release()
