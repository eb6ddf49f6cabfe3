"""The target's standard streams: pipes, terminals of its own, or, for a shell, the agent's own streams.

A terminal's output comes as the target prints it: the kernel's own additions (a carriage return before each line end)
are left to the terminal that shows it, so that logs are those of a run without one. Errors get a terminal of their
own, so that stdout and stderr stay apart; only the first, with the input, is the one that controls the session.
"""

import os
import struct
import subprocess
from typing import Callable, List, Optional, Tuple

from seatrial.agent.plan import Plan, Terminal

#: What a terminal reads as the end of its input, Ctrl-D.
END_OF_INPUT = b"\x04"


class Standard:
    """Both ends of the target's streams.

    Attributes:
        theirs: of stdin, stdout and stderr, as subprocess.Popen takes them.
        stdin: our end, non-blocking, or None. stdout, stderr: likewise; None where the target has the agent's own.
        terminals: descriptors whose window size is the target's.
        controlled: its stdin is the terminal that controls its session.
    """

    def __init__(self) -> None:
        self.theirs: List[Optional[int]] = [None, None, None]
        self.stdin: Optional[int] = None
        self.stdout: Optional[int] = None
        self.stderr: Optional[int] = None
        self.terminals: List[int] = []
        self.controlled = False

    def close_theirs(self) -> None:
        """The target has its own copies, so that its last one closed is the end."""
        for descriptor in {end for end in self.theirs if end is not None and end >= 0}:
            os.close(descriptor)

    def resize(self, lines: int, columns: int) -> None:
        """Tell the terminals, and with it who controls one (SIGWINCH), the size of the caller's window."""
        for descriptor in self.terminals:
            _resize(descriptor, lines, columns)


def open_streams(plan: Plan, say: Callable[[str], None]) -> Standard:
    """What the plan asks for; where the system gives no terminal, pipes, and a sentence.

    Raises OSError.
    """
    standard = Standard()
    if plan.interactive:
        return standard
    terminal = plan.terminal
    if terminal is not None:
        try:
            _open_terminals(standard, terminal)
        except (OSError, ImportError) as error:
            say("no terminal for the target: %s" % error)
    if standard.theirs[0] is None:
        if plan.input is None or (terminal is not None and 0 in terminal.streams):
            standard.theirs[0] = subprocess.DEVNULL
        else:
            standard.theirs[0], standard.stdin = os.pipe()
    if standard.stdout is None:
        standard.stdout, standard.theirs[1] = os.pipe()
    if standard.stderr is None:
        standard.stderr, standard.theirs[2] = os.pipe()
    for ours in (standard.stdin, standard.stdout, standard.stderr):
        if ours is not None:
            os.set_blocking(ours, False)  # a grandchild that keeps the other end open cannot hold us
    return standard


def _open_terminals(standard: Standard, terminal: Terminal) -> None:
    main, errors = None, None
    if 1 in terminal.streams:
        main = _open_terminal(terminal)
    if 2 in terminal.streams:
        errors = _open_terminal(terminal)
    if main is not None:
        standard.stdout, standard.theirs[1] = main
        standard.terminals.append(main[0])
        if 0 in terminal.streams:
            standard.stdin, standard.theirs[0] = os.dup(main[0]), main[1]
            standard.controlled = True
    if errors is not None:
        standard.stderr, standard.theirs[2] = errors
        standard.terminals.append(errors[0])


def _open_terminal(terminal: Terminal) -> Tuple[int, int]:
    """(our end, theirs) of a new pseudo-terminal."""
    import termios  # a Python that has none still runs what needs no terminal

    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    _resize(ours, terminal.lines, terminal.columns)
    return ours, theirs


def _resize(descriptor: int, lines: int, columns: int) -> None:
    import fcntl
    import termios

    try:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    except OSError:  # it has gone
        pass
