"""What the caller types or pipes in, and the size of their window, passed on to a run while it is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from seatrial.input_frames import encode_input, encode_size
from seatrial.job.plan import Plan
from seatrial.runs.run import Run
from seatrial.system.caller import in_foreground, window_size

#: How often the logs are looked at while somebody types: an echo later than this feels late.
TYPING_INTERVAL_S = 0.02

#: Between two looks at the window's size, and whether the run has ended.
_LOOK_S = 0.1

_CHUNK_BYTES = 16 * 1024

_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3


@contextmanager
def passing_on(run: Run, plan: Plan) -> Iterator[None]:
    """While this holds, standard input goes to the target, where its plan says so; the terminal is left as it was."""
    if plan.agent.input is None:
        yield
        return
    terminal = plan.agent.terminal
    typed = terminal is not None and 0 in terminal.streams
    relay = _Relay(run, typed=typed, sized=terminal is not None)
    with _keys() if typed else contextlib.nullcontext():
        relay.start()
        try:
            yield
        finally:
            relay.stop()
            run.input.unlink(missing_ok=True)


@contextmanager
def _keys() -> Iterator[None]:
    """Our terminal hands over keys as they are pressed, and echoes none: the target's own does.

    Ctrl-C, Ctrl-\\ and Ctrl-Z stay ours: they mean to the run what they mean without a terminal.
    """
    before = termios.tcgetattr(0)

    def take(_signal: int = 0, _frame: object = None) -> None:
        if not in_foreground(0):
            return
        modes = termios.tcgetattr(0)
        modes[_INPUT_FLAGS] &= ~(termios.ICRNL | termios.IXON)
        modes[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        termios.tcsetattr(0, termios.TCSADRAIN, modes)

    # Back from Ctrl-Z, the shell has set the terminal anew. In the background, reading fails and does not stop us.
    handlers = ((signal.SIGCONT, take), (signal.SIGTTIN, signal.SIG_IGN))
    is_main = threading.current_thread() is threading.main_thread()
    earlier = [(number, signal.signal(number, handler)) for number, handler in handlers] if is_main else []
    take()
    try:
        yield
    finally:
        if in_foreground(0):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in earlier:
            signal.signal(number, handler)


class _Relay(threading.Thread):
    """Reads standard input while the run takes it.

    Args:
        typed: it is the terminal that the caller types on. sized: the target has terminals of the caller's size.
    """

    def __init__(self, run: Run, *, typed: bool, sized: bool) -> None:
        super().__init__(name="typing", daemon=True)  # a run that has ended does not wait for who types
        self._run, self._typed, self._sized = run, typed, sized
        self._done = threading.Event()

    def run(self) -> None:
        pipe = self._open()
        if pipe is None:
            return
        try:
            self._pass_on(pipe)
        except (BrokenPipeError, BlockingIOError):  # the target takes no more
            pass
        finally:
            os.close(pipe)  # the end of the target's input

    def stop(self) -> None:
        self._done.set()
        if self._typed:  # it must not take a key that is the shell's
            self.join(timeout=2 * _LOOK_S)

    def _open(self) -> int | None:
        """The pipe, once the agent has opened its end; None when the run has ended first."""
        while not self._done.is_set():
            try:
                pipe = os.open(self._run.input, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return None
                time.sleep(_LOOK_S / 2)
                continue
            return pipe
        return None

    def _pass_on(self, pipe: int) -> None:
        shown = None
        while not self._done.is_set():
            if self._sized and (size := window_size(1)) != shown:
                shown = size
                self._write(pipe, encode_size(size[1], size[0]))
            # What the target has not taken is not read: it may be somebody else's, the next command's of a script.
            takes = select.select([], [pipe], [], _LOOK_S)[1]
            if not takes or not select.select([0], [], [], _LOOK_S)[0]:
                continue
            try:
                data = os.read(0, _CHUNK_BYTES)
            except OSError:  # in the background
                self._done.wait(_LOOK_S)
                continue
            if not data:
                return
            self._write(pipe, encode_input(data))

    def _write(self, pipe: int, message: bytes) -> None:
        while message and not self._done.is_set():
            if select.select([], [pipe], [], _LOOK_S)[1]:
                with contextlib.suppress(BlockingIOError):
                    message = message[os.write(pipe, message) :]
