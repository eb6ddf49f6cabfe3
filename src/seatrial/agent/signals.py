"""Signals: which are passed on, and to whom."""

import os
import signal
from typing import Any, List

from seatrial.probe import processes

#: Passed on to the target. SIGKILL and SIGSTOP cannot be caught; the others are about this process itself.
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

#: Signals that request the target's end, so that the grace period begins.
STOPPING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

#: torchrun handles these itself; any other ends it, so only its ranks get the rest.
#: Source: torch/distributed/elastic/multiprocessing/api.py, TORCHELASTIC_SIGNALS_TO_HANDLE (torch 2.13).
_TORCHRUN_HANDLES = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class StoppedEarly(Exception):
    """A stopping signal came before the target was started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def raise_stopped() -> None:
    """Let the first stopping signal end the checks until the target runs. PID 1 ignores what it has no handler for."""

    def stop(number: int, frame: Any) -> None:
        for stopping in STOPPING:
            signal.signal(stopping, signal.SIG_IGN)
        raise StoppedEarly(number)

    for number in STOPPING:
        signal.signal(number, stop)


def collect() -> int:
    """Put signals from now on only as numbers into a pipe, and return its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return read_end


def recipients(number: int, target: int, launcher: str) -> List[int]:
    """Return the PIDs that get the signal: the target and every process under it that runs a program of its own.

    That is each rank, and what a shell ENTRYPOINT has started. Left out are children that only forked, which have
    their parent's command line: a SIGTERM kills torch's DataLoader workers, and a script that answers SIGTERM by saving
    would die of "DataLoader worker is killed by signal" instead. A terminal's SIGINT reaches torchrun alone, whose
    ranks have sessions of their own: it passes one on to them, and a second would break into their saving.
    """
    if launcher == "torchrun" and number == signal.SIGINT:
        return [target]
    chosen = [] if launcher == "torchrun" and number not in _TORCHRUN_HANDLES else [target]
    lines = {target: processes.command_line(target)}
    for process in processes.descendants(target):
        lines[process.pid] = processes.command_line(process.pid)
        if lines[process.pid] != lines.get(process.parent):
            chosen.append(process.pid)
    return chosen


def ignores(pid: int, number: int) -> bool:
    """Return whether a process has set this signal to be ignored: then it goes on as if none had come."""
    return bool(processes.ignored_signals(pid) >> (number - 1) & 1)


def send(pids: List[int], number: int) -> List[int]:
    """Send it; those that got it."""
    reached = []
    for pid in pids:
        try:
            os.kill(pid, number)
            reached.append(pid)
        except (ProcessLookupError, PermissionError):  # gone, or another user's (setuid)
            continue
    return reached


def name(number: int) -> str:
    """Return a signal's name: SIGTERM for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "SIG%d" % number
